import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import * as acts from "../acts";
import { isAwake, isLent, type Face, type Machine, type Stream } from "../api";
import { estimate, shortName } from "../format";
import { useFace, useLook } from "../look";
import { Icon } from "../parts/Icon";
import { complain } from "../parts/notices";
import type { Connection, Opened, Pane } from "../parts/pane";
import { along } from "../walk";
import { Capture } from "./Capture";
import { ConsolePane } from "./Console";
import { Fork } from "./Fork";
import { Buffered, Figures } from "./Playback";
import { ScreenPane } from "./Screen";

const FACES: [Face, string][] = [["screen", "Screen"], ["console", "Console"]];
/** On a screen Esc leaves unless the user says otherwise; on a console it is the guest's: editors there live by it. */
const ESCAPE_FIRST: Record<Face, boolean> = { screen: false, console: true };

/** Who gets Esc, remembered for screens and for consoles. */
function useEscape(face: Face): [boolean, () => void] {
  const key = face === "screen" ? "floe.escape-to-guest" : "floe.escape-to-guest.console";
  const read = (): boolean => {
    const kept = localStorage.getItem(key);
    return kept === null ? ESCAPE_FIRST[face] : kept === "yes";
  };
  const [, changed] = useState(0);
  const now = read();
  const toggle = (): void => {
    localStorage.setItem(key, now ? "no" : "yes");
    changed((count) => count + 1);
  };
  return [now, toggle];
}

/** What the machine is doing, in a few words: shown, and told to who can't see it. */
function wordsFor(machine: Machine | null, stream: Stream | null, connection: Connection, face: Face): { short: string; long: string } {
  if (stream?.buffering) {
    const left = estimate(stream.buffering.eta_s);
    return { short: "Buffering", long: `Buffering, ${left} left` };
  }
  if (isLent(machine)) {
    const node = machine?.moves?.node ?? "another node";
    return connection === "connected"
      ? { short: "Live", long: `The ${face} is live, on ${node}.` }
      : { short: "Connecting", long: `Connecting to the ${face}, on ${node}` };
  }
  switch (machine?.status) {
    case "stopped":
      return { short: "Stopped", long: machine.detail || "The machine is stopped." };
    case "parked":
      return { short: "Parked", long: "Its memory is on the disk; it goes on where it was." };
    case "failed":
      return { short: "Failed", long: machine.detail || "The machine ended badly." };
    case "buffering":
      return { short: "Buffering", long: "Buffering" };
    case "paused":
      return { short: "Paused", long: machine.detail || "The machine is paused." };
    default:
      return connection === "connected"
        ? { short: "Live", long: `The ${face} is live.` }
        : { short: "Connecting", long: `Connecting to the ${face}` };
  }
}

export function MachineView(props: {
  name: string;
  thumbnail: string | null;
  onBack: () => void;
  onDetails: (machine: string) => void;
}) {
  const { name, onBack, onDetails } = props;
  const { machine, stream, shares, gone } = useLook(name);
  const [chosen, setChosen] = useState<Face | null>(null);
  const [typed, setTyped] = useState<Face | null>(null);
  const [connection, setConnection] = useState<Connection>("connecting");
  const [open, setOpen] = useState<"capture" | "fork" | null>(null);
  const theatre = useRef<HTMLElement>(null);
  const pane = useRef<Opened | null>(null);
  const back = useRef<HTMLButtonElement>(null);

  const awake = isAwake(machine?.status);
  const lent = isLent(machine);
  const shown = useFace(name, awake && !chosen && !typed);
  const face = chosen ?? typed ?? shown ?? "screen";
  const [escapeToGuest, toggleEscape] = useEscape(face);
  const words = wordsFor(machine, stream, connection, face);
  const paused = machine !== null && acts.isPaused(machine);
  const parked = machine?.status === "parked";

  useEffect(() => {
    if (gone) {
      complain(new Error(`There is no machine ${name} any more.`));
      onBack();
    }
  }, [gone]);

  const full = useCallback((): void => {
    const done = document.fullscreenElement ? document.exitFullscreen() : theatre.current?.requestFullscreen();
    done?.catch(complain);
  }, []);
  const stop = (): void => {
    if (machine) void acts.stop(machine, () => setOpen("capture"));
  };

  useEffect(() => {
    const keys: Record<string, () => void> = {
      Escape: onBack,
      f: full,
      c: () => awake && setOpen("capture"),
      n: () => awake && setOpen("fork"),
      p: () => void (awake && machine && acts.pauseOrResume(machine)),
      s: () => setChosen(face === "screen" ? "console" : "screen"),
      i: () => onDetails(name),
    };
    const key = (event: KeyboardEvent): void => {
      const act = keys[event.key];
      const busy = event.target instanceof HTMLElement && event.target.closest("input, textarea, canvas, dialog");
      if (!act || busy || document.querySelector("dialog[open]") || event.ctrlKey || event.altKey || event.metaKey) return;
      // or the letter would be the first that is typed into the dialog
      event.preventDefault();
      act();
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, [onBack, full, onDetails, name, face, awake, machine]);

  const shared: Pane = {
    name,
    awake: awake || lent,
    at: lent ? (machine?.moves?.node ?? "") : "",
    escapeToGuest,
    onConnection: setConnection,
    onLeave: () => back.current?.focus(),
    onType: () => setTyped(face),
    handle: pane,
  };
  const waiting = stream?.buffering ?? null;
  // a paused machine's console may be read and scrolled
  const veiled = waiting !== null || !(awake || lent) || connection !== "connected";
  return (
    <main class="theatre" ref={theatre} aria-labelledby="screen-title">
      <div class="stage">
        {face === "screen" ? (
          <ScreenPane {...shared} key="screen" thumbnail={props.thumbnail} seed={machine?.image ?? name} />
        ) : (
          <ConsolePane {...shared} key="console" />
        )}
        {veiled && (
          <div class={`veil ${waiting ? "light" : ""}`}>
            <div class="veil-box">
              {(awake || lent || !machine) && <span class="spinner" aria-hidden="true" />}
              <p class="veil-title">{waiting ? "Buffering…" : words.short}</p>
              <p>{waiting ? `${estimate(waiting.eta_s)} left` : words.long}</p>
              {machine && !awake && !lent && (
                <button class="primary" onClick={() => void (parked ? acts.wake(name) : acts.start(name))}>
                  <Icon name="play" /> {parked ? "Wake" : "Start again"}
                </button>
              )}
            </div>
          </div>
        )}
      </div>
      <p class="unseen" role="status" aria-live="polite">{words.long}</p>
      <div class="bar" role="toolbar" aria-label="Machine" onKeyDown={along}>
        <Buffered stream={stream} machine={machine} />
        <button class="tool" ref={back} onClick={onBack} aria-label="Back" title="Back to the images (Esc)">
          <Icon name="back" /> <span class="wide">Back</span>
        </button>
        <div class="bar-title">
          <h1 id="screen-title" title={name}>{name}</h1>
          <p title={machine ? shortName(machine.image_name) : words.short}><span class={`dot ${words.short.toLowerCase()}`} /> {words.short}
            {machine && <span class="wide"> · {shortName(machine.image_name).split("/").pop()}</span>}</p>
        </div>
        <div class="faces" role="group" aria-label="Shown">
          {FACES.map(([one, label]) => (
            <button key={one} aria-pressed={face === one} title={`${label} (s)`} onClick={() => setChosen(one)}>{label}</button>
          ))}
        </div>
        <span class="grow" />
        <Figures stream={stream} machine={machine} shares={shares} />
        <div class="tools">
          <button
            class="tool"
            aria-label="Esc to guest"
            aria-pressed={escapeToGuest}
            onClick={toggleEscape}
            title="On: Esc goes to the guest, and Shift + Esc leaves it. Off: the other way round"
          >
            <Icon name="keys" /> <span class="wide">Esc to guest</span>
          </button>
          {face === "screen" ? (
            <button class="tool" onClick={() => pane.current?.sendCtrlAltDel?.()} disabled={connection !== "connected"}>
              <span class="narrow">C-A-D</span><span class="wide">Ctrl+Alt+Del</span>
            </button>
          ) : (
            <button
              class="tool"
              aria-label="Tell size"
              onClick={() => pane.current?.tellSize?.()}
              disabled={connection !== "connected"}
              title="A serial line does not tell a guest how large the terminal is: this types the command stty with the size into its shell"
            >
              <Icon name="fit" /> <span class="wide">Tell size</span>
            </button>
          )}
          <button
            class="tool"
            onClick={() => machine && void acts.pauseOrResume(machine)}
            disabled={!awake}
            title={paused ? "Resume (p)" : "Pause (p)"}
            aria-label={paused ? "Resume" : "Pause"}
          >
            <Icon name={paused ? "play" : "pause"} />
          </button>
          <button class="tool" onClick={() => setOpen("capture")} disabled={!awake} title="Capture (c)" aria-label="Capture">
            <Icon name="camera" />
          </button>
          <button class="tool" onClick={() => setOpen("fork")} disabled={!awake} title="Fork (n)" aria-label="Fork">
            <Icon name="fork" />
          </button>
          <button class="tool" onClick={() => machine && void acts.restart(machine)} disabled={!machine} title="Restart from its disks" aria-label="Restart">
            <Icon name="restart" />
          </button>
          <button class="tool" onClick={stop} disabled={!awake} title="Stop" aria-label="Stop">
            <Icon name="stop" />
          </button>
          <button class="tool" onClick={() => onDetails(name)} title="Details (i)" aria-label="Details">
            <Icon name="info" />
          </button>
          <button class="tool" onClick={full} title="Full screen (f)" aria-label="Full screen">
            <Icon name="full" />
          </button>
        </div>
      </div>
      {open === "capture" && machine && <Capture machine={machine} onClose={() => setOpen(null)} />}
      {open === "fork" && machine && <Fork machine={machine} onClose={() => setOpen(null)} />}
    </main>
  );
}
