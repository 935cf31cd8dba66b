import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import { Dialog } from "./Dialog";
import { Meter, type Progress } from "./Meter";
import { wordsOf } from "./notices";

/** Shows how far a task is. */
export type Show = (progress: Progress) => void;

/** What a task does before it tells how far it is. */
export function begun(label: string): Progress {
  return { label, done: 0, total: 0, unit: "" };
}

interface Props {
  title: string;
  /** What is asked for; `busy` while the task runs. */
  children: (busy: boolean) => ComponentChildren;
  /** Buttons beside that of the task. */
  buttons?: (busy: boolean) => ComponentChildren;
  /** The task's button. */
  action: string;
  /** The task's name until it says more. */
  label: string;
  run: (show: Show, signal: AbortSignal) => Promise<void>;
  onClose: () => void;
}

/** A form that starts one long task, says how far it is and closes at its end; what went wrong stands in it. Closed before,
 * the task ends. */
export function TaskDialog(props: Props) {
  const [progress, setProgress] = useState<Progress | null>(null);
  const [problem, setProblem] = useState<{ text: string; fix: string } | null>(null);
  const running = useRef<AbortController | null>(null);
  const busy = progress !== null;
  const close = (): void => {
    running.current?.abort();
    props.onClose();
  };
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (busy) return;
    setProblem(null);
    running.current = new AbortController();
    setProgress(begun(props.label));
    try {
      await props.run(setProgress, running.current.signal);
      props.onClose();
    } catch (error) {
      setProgress(null);
      setProblem(wordsOf(error));
    }
  };
  return (
    <Dialog title={props.title} onClose={close}>
      <form onSubmit={(event) => void submit(event)}>
        {props.children(busy)}
        {progress && <Meter progress={progress} />}
        <div role="alert">
          {problem && (
            <p class="problem">
              {problem.text}
              {problem.fix && <span class="fix">{problem.fix}</span>}
            </p>
          )}
        </div>
        <footer class="dialog-foot">
          <button type="button" onClick={close}>Cancel</button>
          {props.buttons?.(busy)}
          <button class="primary" disabled={busy}>{props.action}</button>
        </footer>
      </form>
    </Dialog>
  );
}
