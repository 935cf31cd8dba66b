import { useEffect, useState } from "preact/hooks";

/** One of the things that can be done. */
export interface Choice {
  id: string;
  label: string;
  /** What it means, where the label does not say so. */
  hint: string;
  /** Something is lost by it for good. */
  loses?: boolean;
}

/** Asked before something is lost. */
export interface Question {
  title: string;
  text: string;
  choices: Choice[];
  answer: (id: string | null) => void;
}

let open: Question | null = null;
const listeners = new Set<(open: Question | null) => void>();

function show(next: Question | null): void {
  open = next;
  for (const listener of listeners) listener(open);
}

/** Returns the id of what was chosen; `null` if nothing is to be done. */
export function ask(title: string, text: string, choices: Choice[]): Promise<string | null> {
  // one question at a time: a second one answers the first with no
  open?.answer(null);
  return new Promise((resolve) => {
    const question: Question = {
      title,
      text,
      choices,
      answer: (id) => {
        if (open === question) show(null);
        resolve(id);
      },
    };
    show(question);
  });
}

export function useQuestion(): Question | null {
  const [shown, setShown] = useState(open);
  useEffect(() => {
    listeners.add(setShown);
    return () => {
      listeners.delete(setShown);
    };
  }, []);
  return shown;
}
