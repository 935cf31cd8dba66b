import { useEffect, useState } from "preact/hooks";
import { Refusal } from "../api";

/** Something to tell; it goes by itself, an error only when it is closed. */
export interface Notice {
  id: number;
  text: string;
  fix: string;
  error: boolean;
}

const SHOWN_MS = 6000;
let notices: Notice[] = [];
let count = 0;
const listeners = new Set<(notices: Notice[]) => void>();

function publish(next: Notice[]): void {
  notices = next;
  for (const listener of listeners) listener(notices);
}

export function dismiss(id: number): void {
  publish(notices.filter((notice) => notice.id !== id));
}

export function tell(text: string): void {
  const id = ++count;
  publish([...notices, { id, text, fix: "", error: false }]);
  setTimeout(() => dismiss(id), SHOWN_MS);
}

/** Shows what went wrong. Who stopped something himself needs not hear of it. */
export function complain(error: unknown): void {
  if (error instanceof DOMException && error.name === "AbortError") return;
  const refusal = error instanceof Refusal ? error.problem : null;
  const text = refusal?.message ?? (error instanceof Error ? error.message : String(error));
  if (notices.some((notice) => notice.text === text)) return;
  publish([...notices, { id: ++count, text, fix: refusal?.fix ?? "", error: true }]);
}

export function useNotices(): Notice[] {
  const [shown, setShown] = useState(notices);
  useEffect(() => {
    listeners.add(setShown);
    return () => {
      listeners.delete(setShown);
    };
  }, []);
  return shown;
}
