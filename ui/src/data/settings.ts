// What a person chose for this browser: theme and language. A browser without storage forgets them.
import { effect, signal } from '@preact/signals';

export type Theme = 'auto' | 'light' | 'dark';
export type Language = 'en' | 'zh';

const kept = (name: string): string | null => {
  try {
    return localStorage.getItem(`contrail.${name}`);
  } catch {
    return null;
  }
};

const keep = (name: string, value: string): void => {
  try {
    localStorage.setItem(`contrail.${name}`, value);
  } catch {
    // Private windows may have none.
  }
};

const isTheme = (text: string | null): text is Theme => text === 'light' || text === 'dark';
const isLanguage = (text: string | null): text is Language => text === 'en' || text === 'zh';

const keptTheme = kept('theme');
const keptLanguage = kept('language');
const ofBrowser: Language = navigator.languages.find((one) => /^(zh|en)/.test(one))?.startsWith('zh') ? 'zh' : 'en';

export const theme = signal<Theme>(isTheme(keptTheme) ? keptTheme : 'auto');
export const language = signal<Language>(isLanguage(keptLanguage) ? keptLanguage : ofBrowser);

effect(() => {
  document.documentElement.dataset.theme = theme.value;
  keep('theme', theme.value);
});

effect(() => {
  document.documentElement.lang = language.value === 'zh' ? 'zh-CN' : 'en';
});

export function choose(wanted: Language): void {
  language.value = wanted;
  keep('language', wanted);
}
