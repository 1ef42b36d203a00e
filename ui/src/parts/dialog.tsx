// A dialog of the browser's own: it keeps the focus inside, and Esc closes it.
import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { t } from '../texts';

interface Props {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
}

export function Dialog({ title, onClose, children }: Props) {
  const place = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    place.current?.showModal();
    return () => before?.focus();
  }, []);
  return (
    <dialog ref={place} aria-label={title} onClose={onClose}>
      <header>
        <h2>{title}</h2>
        <button type="button" class="small" aria-label={t('close')} onClick={() => place.current?.close()}>
          ✕
        </button>
      </header>
      {children}
    </dialog>
  );
}
