// A change: its form, the plan that the console makes of it, then the run and its outcomes.
import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { ApiError, may, send, type Role } from '../data/api';
import { type Key, t } from '../texts';
import { Dialog } from './dialog';
import { Command } from './page';
import { Failed } from './states';

export interface Planned {
  plan_id: string;
  title: string;
  steps: string[];
  warnings: string[];
  command: string | null;
  expires_ms: number;
}

interface Outcome {
  target: string;
  outcome: string;
  detail: string;
}

export interface Ran {
  outcomes: Outcome[];
  run_id: string | null;
}

interface ButtonProps {
  label: Key;
  title: string;
  // The path of the plan, such as /groups/billing/seek:plan.
  path: string;
  // Fields of the form; without them the plan is made at once.
  form?: (value: Values, set: (changes: Values) => void) => ComponentChildren;
  start?: Values;
  bodyOf?: (value: Values) => unknown;
  danger?: boolean;
  small?: boolean;
  role?: Role;
  onDone?: (ran: Ran) => void;
}

export type Values = Record<string, string | boolean>;

// A button that opens the change; accounts that may not make it see it without effect, with the reason.
export function ChangeButton(props: ButtonProps) {
  const [isOpen, setOpen] = useState(false);
  const role = props.role ?? 'operator';
  const isAllowed = may(role);
  return (
    <>
      <button
        type="button"
        class={`${props.danger ? 'danger' : ''} ${props.small ? 'small' : ''}`}
        disabled={!isAllowed}
        title={isAllowed ? undefined : t('needs_role', { role })}
        onClick={() => setOpen(true)}
      >
        {t(props.label)}
      </button>
      {isOpen && <Change {...props} onClose={() => setOpen(false)} />}
    </>
  );
}

interface ChangeProps extends Omit<ButtonProps, 'label' | 'path' | 'small' | 'role'> {
  path: string | ((value: Values) => string);
  onClose: () => void;
}

export function Change(props: ChangeProps) {
  const [values, setValues] = useState<Values>(props.start ?? {});
  const [planned, setPlanned] = useState<Planned>();
  const [ran, setRan] = useState<Ran>();
  const [error, setError] = useState<ApiError>();
  const [isBusy, setBusy] = useState(false);
  const ask = async (work: () => Promise<void>) => {
    setBusy(true);
    setError(undefined);
    try {
      await work();
    } catch (failure) {
      setError(failure instanceof ApiError ? failure : new ApiError(0, String(failure)));
    } finally {
      setBusy(false);
    }
  };
  const plan = (event: Event) => {
    event.preventDefault();
    void ask(async () => {
      setPlanned(await send<Planned>('POST', typeof props.path === 'string' ? props.path : props.path(values), props.bodyOf ? props.bodyOf(values) : values));
    });
  };
  const run = () =>
    ask(async () => {
      const told = await send<Ran>('POST', `/plans/${planned!.plan_id}:run`);
      setRan(told);
    });
  // Only then: the row that this button stands in may be gone by the change.
  const close = () => {
    props.onClose();
    if (ran) props.onDone?.(ran);
  };
  return (
    <Dialog title={props.title} onClose={close}>
      {!planned && (
        <form onSubmit={plan}>
          {props.form?.(values, (changes) => setValues({ ...values, ...changes }))}
          <footer>
            <button type="submit" class="main" disabled={isBusy}>
              {t('make_plan')}
            </button>
          </footer>
        </form>
      )}
      {error && <Failed error={error} />}
      {planned && !ran && <PlanShown planned={planned} isBusy={isBusy} danger={props.danger} run={run} back={() => setPlanned(undefined)} />}
      {ran && (
        <>
          <Outcomes ran={ran} />
          <footer>
            <button type="button" class="main" onClick={(event) => event.currentTarget.closest('dialog')?.close()}>
              {t('close')}
            </button>
          </footer>
        </>
      )}
    </Dialog>
  );
}

interface ShownProps {
  planned: Planned;
  isBusy: boolean;
  danger?: boolean;
  run: () => void;
  back: () => void;
}

function PlanShown({ planned, isBusy, danger, run, back }: ShownProps) {
  return (
    <div data-plan={planned.plan_id}>
      <h3>{planned.title}</h3>
      <ol class="steps">
        {planned.steps.map((one, index) => (
          <li key={index}>{one}</li>
        ))}
      </ol>
      {planned.warnings.map((one) => (
        <p key={one} class="notice warn">
          {one}
        </p>
      ))}
      {planned.command && (
        <>
          <p class="quiet">{t('plan_command')}</p>
          <Command text={planned.command} />
        </>
      )}
      <footer>
        <button type="button" onClick={back} disabled={isBusy}>
          {t('back')}
        </button>
        <button type="button" class={danger ? 'main danger' : 'main'} onClick={run} disabled={isBusy}>
          {t('run_plan')}
        </button>
      </footer>
    </div>
  );
}

export function Outcomes({ ran }: { ran: Ran }) {
  return (
    <ul class="outcomes" role="status">
      {ran.outcomes.map((one, index) => (
        <li key={index} class={one.outcome}>
          <b>{one.target}</b>: {one.outcome}
          {one.detail && ` – ${one.detail}`}
        </li>
      ))}
      {ran.outcomes.length === 0 && <li>{t('run_begun')}</li>}
    </ul>
  );
}

// Fields of such forms.

interface FieldProps {
  label: Key;
  name: string;
  values: Values;
  set: (changes: Values) => void;
  hint?: string;
}

export function Field(props: FieldProps & { isNumber?: boolean; required?: boolean; options?: string[]; rows?: number }) {
  const { label, name, values, set, isNumber, required, options, rows, hint } = props;
  const value = String(values[name] ?? '');
  const id = `field-${name}`;
  return (
    <div class="field">
      <label for={id}>{t(label)}</label>
      {options ? (
        <select id={id} value={value} onChange={(event) => set({ [name]: event.currentTarget.value })}>
          {options.map((one) => (
            <option key={one} value={one}>
              {one}
            </option>
          ))}
        </select>
      ) : rows ? (
        <textarea id={id} rows={rows} value={value} required={required} spellcheck={false} onInput={(event) => set({ [name]: event.currentTarget.value })} />
      ) : (
        <input
          id={id}
          inputmode={isNumber ? 'numeric' : undefined}
          pattern={isNumber ? '-?[0-9]+' : undefined}
          value={value}
          required={required}
          autocomplete="off"
          onInput={(event) => set({ [name]: event.currentTarget.value })}
        />
      )}
      {hint && <span class="quiet">{hint}</span>}
    </div>
  );
}

export function Check({ label, name, values, set }: FieldProps) {
  return (
    <label class="check">
      <input type="checkbox" checked={values[name] === true} onChange={(event) => set({ [name]: event.currentTarget.checked })} />
      {t(label)}
    </label>
  );
}
