import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { Icon } from "./Icon";

/** A modal dialog: the browser keeps the focus inside, closes it on Esc and gives the focus back. */
export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren }) {
  const element = useRef<HTMLDialogElement>(null);
  const title = useId();
  useEffect(() => {
    element.current?.showModal();
  }, []);
  return (
    <dialog
      ref={element}
      class="dialog"
      aria-labelledby={title}
      onClose={props.onClose}
      onKeyDown={(event) => event.stopPropagation()}
    >
      <header class="dialog-head">
        <h2 id={title}>{props.title}</h2>
        <button class="quiet" aria-label="Close" onClick={() => element.current?.close()}>
          <Icon name="close" />
        </button>
      </header>
      {props.children}
    </dialog>
  );
}
