// One event stream a tab: it tells of each new sample. Pages that are open ask for their rows then.
import { effect, signal } from '@preact/signals';
import { session } from './api';

export const sampledMs = signal(0);
export const missingCount = signal(0);
export const isConnected = signal(true);

let stream: EventSource | null = null;

effect(() => {
  const wanted = session.value != null;
  if (wanted && stream === null) open();
  if (!wanted && stream !== null) {
    stream.close();
    stream = null;
  }
});

function open(): void {
  stream = new EventSource('/api/v1/events');
  stream.onopen = () => {
    isConnected.value = true;
  };
  stream.onerror = () => {
    isConnected.value = false;
  };
  stream.addEventListener('sample', (event) => {
    const told = JSON.parse((event as MessageEvent<string>).data);
    isConnected.value = true;
    missingCount.value = told.missing_count;
    sampledMs.value = told.sampled_ms;
  });
}

// The time of this machine, for "4 s ago".
export const now = signal(Date.now());
setInterval(() => {
  now.value = Date.now();
}, 1000);
