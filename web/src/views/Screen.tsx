import { useEffect, useRef, useState } from "preact/hooks";
import { complain } from "../parts/notices";
import type { Connection, Pane } from "../parts/pane";
import { Thumb } from "../parts/Thumb";
import { openScreen, type Screen } from "../vnc";

const RECONNECT_MS = 1000;

/** The machine's screen, keyboard and pointer. */
export function ScreenPane(props: Pane & { thumbnail: string | null; seed: string }) {
  const { name, awake, at, onConnection, handle } = props;
  const [seen, setSeen] = useState(false);
  const [attempt, setAttempt] = useState(0);
  const place = useRef<HTMLDivElement>(null);
  const events = useRef(props);
  events.current = props;

  useEffect(() => {
    if (!awake || !place.current) return;
    let ended = false;
    let timer = 0;
    let screen: Screen | null = null;
    const tell = (next: Connection): void => {
      if (!ended) onConnection(next);
    };
    tell("connecting");
    const opened = openScreen(name, place.current, {
      onConnect: () => {
        tell("connected");
        setSeen(true);
        if (!document.querySelector("dialog[open]")) screen?.focus();
      },
      onDisconnect: () => {
        tell("lost");
        timer = window.setTimeout(() => setAttempt((before) => before + 1), RECONNECT_MS);
      },
      onLeave: () => events.current.onLeave(),
      escapeToGuest: () => events.current.escapeToGuest,
    });
    opened.then((one) => (ended ? one.close() : (handle.current = screen = one)), complain);
    return () => {
      ended = true;
      clearTimeout(timer);
      screen?.close();
      handle.current = null;
    };
  }, [name, awake, at, attempt]);

  const enter = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" || event.target !== place.current) return;
    event.preventDefault();
    handle.current?.focus();
  };
  const leave = `${props.escapeToGuest ? "Shift and " : ""}Escape to leave.`;
  return (
    <>
      {!seen && <div class="poster"><Thumb src={props.thumbnail} seed={props.seed} /></div>}
      <div
        class={`screen ${awake ? "" : "off"}`}
        ref={place}
        tabIndex={0}
        role="application"
        aria-label={`Screen of ${name}. Enter to type into the guest, ${leave}`}
        onKeyDown={enter}
        onKeyDownCapture={(event) => event.target instanceof HTMLCanvasElement && props.onType()}
      />
    </>
  );
}
