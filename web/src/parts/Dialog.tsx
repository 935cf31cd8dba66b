import type { ComponentChildren } from "preact";
import { useId, useLayoutEffect, useRef } from "preact/hooks";
import { Icon } from "./Icon";
import { Notices } from "./Notices";
import { useLayer } from "./notices";

/** Puts the focus on what is to be typed or pressed first, and selects what stands there: typing replaces it. */
function focusFirst(dialog: HTMLDialogElement): void {
  const first = dialog.querySelector<HTMLElement>("[data-first]");
  first?.focus();
  if (first instanceof HTMLInputElement && (first.type === "text" || first.type === "number")) first.select();
}

/** What had the focus before a dialog took it; a dialog that follows another gives it back to the same. */
let opener: Element | null = null;

/** A modal dialog: the browser keeps the focus inside, closes it on Esc and gives the focus back. */
export function Dialog(props: { title: string; class?: string; onClose: () => void; children: ComponentChildren }) {
  const element = useRef<HTMLDialogElement>(null);
  const title = useId();
  useLayer(element);
  // before the next key, which may come at once after the one that opened it
  useLayoutEffect(() => {
    const dialog = element.current;
    if (!dialog) return;
    if (!document.activeElement?.closest("dialog")) opener = document.activeElement;
    const before = opener;
    dialog.showModal();
    focusFirst(dialog);
    // taken away by the page, it would leave the focus nowhere
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={element}
      class={`dialog ${props.class ?? ""}`}
      aria-labelledby={title}
      onClose={props.onClose}
      onKeyDown={(event) => event.stopPropagation()}
    >
      <header class="dialog-head">
        <h2 id={title} title={props.title}>{props.title}</h2>
        <button type="button" class="quiet" aria-label="Close" onClick={() => element.current?.close()}>
          <Icon name="close" />
        </button>
      </header>
      {props.children}
      <Notices layer={element} />
    </dialog>
  );
}
