import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { Refusal } from "../api";

/** Something to tell; it goes by itself, an error only when it is closed. */
export interface Notice {
  id: number;
  text: string;
  fix: string;
  error: boolean;
}

const SHOWN_MS = 6000;
/** Longer texts stay for as long as it takes to read them. */
const READ_MS_PER_LETTER = 50;
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
  setTimeout(() => dismiss(id), Math.max(SHOWN_MS, text.length * READ_MS_PER_LETTER));
}

/** What went wrong, and what to do. `null` if somebody stopped it himself, who needs not hear of it. */
export function wordsOf(error: unknown): { text: string; fix: string } | null {
  if (error instanceof DOMException && error.name === "AbortError") return null;
  if (error instanceof Refusal) return { text: error.problem.message, fix: error.problem.fix };
  return { text: error instanceof Error ? error.message : String(error), fix: "" };
}

/** Shows what went wrong. */
export function complain(error: unknown): void {
  const words = wordsOf(error);
  if (!words || notices.some((notice) => notice.text === words.text)) return;
  publish([...notices, { id: ++count, ...words, error: true }]);
}

/** The dialogs that are open, the foremost last. Only what is in the foremost can be read and clicked. */
type Layer = RefObject<HTMLElement>;
let layers: Layer[] = [];
const watchers = new Set<(foremost: Layer | null) => void>();

function stack(next: Layer[]): void {
  layers = next;
  for (const watcher of watchers) watcher(layers.at(-1) ?? null);
}

/** Says that an element covers the page for as long as it is shown. */
export function useLayer(layer: Layer): void {
  useLayoutEffect(() => {
    stack([...layers, layer]);
    return () => stack(layers.filter((one) => one !== layer));
  }, [layer]);
}

/** What covers the page at the moment. */
export function useForemost(): Layer | null {
  const [foremost, setForemost] = useState<Layer | null>(layers.at(-1) ?? null);
  useLayoutEffect(() => {
    const watcher = (next: Layer | null): void => setForemost(next);
    watchers.add(watcher);
    setForemost(layers.at(-1) ?? null);
    return () => {
      watchers.delete(watcher);
    };
  }, []);
  return foremost;
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
