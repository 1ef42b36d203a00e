// Texts of the page: one catalogue, every entry in all languages.
import { language } from '../data/settings';
import { CATALOGUE, type Key } from './catalogue';

export type { Key };

const PLACE: Record<'en' | 'zh', 0 | 1> = { en: 0, zh: 1 };

export function t(key: Key, values: Record<string, string | number> = {}): string {
  const text: string = CATALOGUE[key][PLACE[language.value]];
  return text.replace(/\{(\w+)\}/g, (whole, name: string) => String(values[name] ?? whole));
}
