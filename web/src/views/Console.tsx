import { useEffect, useRef, useState } from "preact/hooks";
import { complain } from "../parts/notices";
import type { Connection, Pane } from "../parts/pane";
import type { Console } from "../terminal";

const RECONNECT_MS = 1000;

/** The machine's serial console: what the guest has written, and a keyboard for it. */
export function ConsolePane(props: Pane) {
  const { name, awake, at, onConnection, handle } = props;
  const [attempt, setAttempt] = useState(0);
  const [taken, setTaken] = useState(false);
  const place = useRef<HTMLDivElement>(null);
  const events = useRef(props);
  events.current = props;

  useEffect(() => {
    const element = place.current;
    if (!awake || !element) return;
    let ended = false;
    let timer = 0;
    let opened: Console | null = null;
    const tell = (next: Connection): void => {
      if (!ended) onConnection(next);
    };
    tell("connecting");
    import("../terminal").then(({ openConsole }) => {
      if (ended) return;
      opened = openConsole(name, element, {
        onConnect: () => {
          tell("connected");
          if (!document.querySelector("dialog[open]")) opened?.focus();
        },
        onDisconnect: () => {
          tell("lost");
          timer = window.setTimeout(() => setAttempt((before) => before + 1), RECONNECT_MS);
        },
        onLeave: () => events.current.onLeave(),
        onType: () => events.current.onType(),
        onTaken: setTaken,
        escapeToGuest: () => events.current.escapeToGuest,
      });
      handle.current = opened;
    }, complain);
    return () => {
      ended = true;
      clearTimeout(timer);
      opened?.close();
      handle.current = null;
    };
  }, [name, awake, at, attempt]);

  const enter = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" || event.target !== event.currentTarget) return;
    event.preventDefault();
    handle.current?.focus();
  };
  const leave = `${props.escapeToGuest ? "Shift and " : ""}Escape to leave.`;
  return (
    <div
      class={`console ${awake ? "" : "off"}`}
      tabIndex={0}
      role="application"
      aria-label={`Serial console of ${name}. Enter to type into the guest, ${leave}`}
      onKeyDown={enter}
    >
      {taken && (
        <p class="taken" role="status">
          Another program has this console’s line (<code>floe console</code>, say): it types there, this page shows what the guest
          writes. You can type once it has left.
        </p>
      )}
      <div class="console-grid" ref={place} />
    </div>
  );
}
