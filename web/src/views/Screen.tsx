import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { api, isAwake, Refusal, type Machine, type Stream } from "../api";
import { estimate, shortName } from "../format";
import { Icon } from "../parts/Icon";
import { complain } from "../parts/notices";
import { Thumb } from "../parts/Thumb";
import { openScreen, type Screen } from "../vnc";
import { Capture } from "./Capture";
import { Fork } from "./Fork";
import { start, stop } from "./Machines";
import { Buffered, Figures } from "./Playback";

const LOOK_EVERY_MS = 1000;
/** While the machine stands still, its estimate is looked at more often. */
const LOOK_EVERY_BUFFERING_MS = 400;
const RECONNECT_MS = 1000;
const KEEP_ESCAPE = "floe.escape-to-guest";

type Link = "connecting" | "connected" | "lost";

/** The machine and its stream, looked at again and again. A node that knows no streams is asked for them once. */
function useLook(name: string): { machine: Machine | null; stream: Stream | null; gone: boolean } {
  const [machine, setMachine] = useState<Machine | null>(null);
  const [stream, setStream] = useState<Stream | null>(null);
  const [gone, setGone] = useState(false);
  useEffect(() => {
    let ended = false;
    let streams = true;
    let timer = 0;
    const look = async (): Promise<void> => {
      let next = LOOK_EVERY_MS;
      try {
        const seen = await api.machine(name);
        if (ended) return;
        setMachine(seen);
        if (streams && isAwake(seen.status)) {
          const streamed = await api.stream(name);
          if (ended) return;
          setStream(streamed);
          if (streamed.buffering) next = LOOK_EVERY_BUFFERING_MS;
        } else setStream(null);
      } catch (error) {
        if (ended) return;
        // the machine is asked for first: if it is not there, the path of its stream was never tried
        const absent = error instanceof Refusal && error.status === 404;
        if (absent && !(await api.machine(name).then(() => true, () => false))) return setGone(true);
        if (absent) streams = false;
      }
      if (!ended) timer = window.setTimeout(() => void look(), next);
    };
    void look();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [name]);
  return { machine, stream, gone };
}

/** What the machine is doing, in a few words: shown, and told to who can't see it. */
function wordsFor(machine: Machine | null, stream: Stream | null, link: Link): { short: string; long: string } {
  if (stream?.buffering) {
    const left = estimate(stream.buffering.eta_s);
    return { short: "Buffering", long: `Buffering, ${left} left` };
  }
  switch (machine?.status) {
    case "stopped":
      return { short: "Stopped", long: machine.detail || "The machine is stopped." };
    case "failed":
      return { short: "Failed", long: machine.detail || "The machine ended badly." };
    case "buffering":
      return { short: "Buffering", long: "Buffering" };
    case "paused":
      return { short: "Paused", long: machine.detail || "The machine is paused." };
    default:
      return link === "connected"
        ? { short: "Live", long: "The screen is live." }
        : { short: "Connecting", long: "Connecting to the screen" };
  }
}

export function ScreenView(props: {
  name: string;
  thumbnail: string | null;
  onBack: () => void;
}) {
  const { name, onBack } = props;
  const { machine, stream, gone } = useLook(name);
  const [link, setLink] = useState<Link>("connecting");
  const [seen, setSeen] = useState(false);
  const [attempt, setAttempt] = useState(0);
  const [capturing, setCapturing] = useState(false);
  const [forking, setForking] = useState(false);
  const [keepEscape, setKeepEscape] = useState(() => localStorage.getItem(KEEP_ESCAPE) === "yes");
  const theatre = useRef<HTMLElement>(null);
  const place = useRef<HTMLDivElement>(null);
  const screen = useRef<Screen | null>(null);
  const back = useRef<HTMLButtonElement>(null);
  const escapes = useRef(keepEscape);
  escapes.current = keepEscape;

  const awake = isAwake(machine?.status);
  const words = wordsFor(machine, stream, link);

  useEffect(() => {
    if (gone) {
      complain(new Error(`There is no machine ${name} any more.`));
      onBack();
    }
  }, [gone]);

  useEffect(() => {
    if (!awake || !place.current) return;
    let ended = false;
    let timer = 0;
    setLink("connecting");
    const opened = openScreen(name, place.current, {
      onConnect: () => {
        setLink("connected");
        setSeen(true);
        if (!document.querySelector("dialog[open]")) screen.current?.focus();
      },
      onDisconnect: () => {
        setLink("lost");
        timer = window.setTimeout(() => setAttempt((before) => before + 1), RECONNECT_MS);
      },
      onLeave: () => back.current?.focus(),
      escapeToGuest: () => escapes.current,
    });
    opened.then((one) => (ended ? one.close() : (screen.current = one)), complain);
    return () => {
      ended = true;
      clearTimeout(timer);
      screen.current?.close();
      screen.current = null;
    };
  }, [name, awake, attempt]);

  const full = useCallback((): void => {
    const done = document.fullscreenElement ? document.exitFullscreen() : theatre.current?.requestFullscreen();
    done?.catch(complain);
  }, []);

  useEffect(() => {
    const key = (event: KeyboardEvent): void => {
      const busy = event.target instanceof HTMLInputElement || document.querySelector("dialog[open]");
      if (busy || event.ctrlKey || event.altKey || event.metaKey) return;
      if (event.target instanceof HTMLCanvasElement) return;
      if (event.key === "Escape") onBack();
      if (event.key === "f") full();
      if (event.key === "c") setCapturing(true);
      if (event.key === "n") setForking(true);
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, [onBack, full]);

  const toggleEscape = (): void => {
    localStorage.setItem(KEEP_ESCAPE, keepEscape ? "no" : "yes");
    setKeepEscape(!keepEscape);
  };
  const restart = async (): Promise<void> => {
    if (awake) await stop(name);
    await start(name);
  };
  const enter = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" || event.target !== place.current) return;
    event.preventDefault();
    screen.current?.focus();
  };
  const waiting = stream?.buffering ?? null;
  return (
    <main class="theatre" ref={theatre} aria-labelledby="screen-title">
      <div class="stage">
        {!seen && <div class="poster"><Thumb src={props.thumbnail} seed={machine?.image ?? name} /></div>}
        <div
          class={`screen ${awake ? "" : "off"}`}
          ref={place}
          tabIndex={0}
          role="application"
          aria-label={`Screen of ${name}. Enter to type into the guest, ${keepEscape ? "Shift and " : ""}Escape to leave.`}
          onKeyDown={enter}
        />
        {(waiting || !awake || link !== "connected") && (
          <div class={`veil ${waiting ? "light" : ""}`}>
            <div class="veil-box">
              {(awake || !machine) && <span class="spinner" aria-hidden="true" />}
              <p class="veil-title">{waiting ? "Buffering…" : words.short}</p>
              <p>{waiting ? `${estimate(waiting.eta_s)} left` : words.long}</p>
              {machine && !awake && (
                <button class="primary" onClick={() => void start(name)}><Icon name="play" /> Start again</button>
              )}
            </div>
          </div>
        )}
      </div>
      <p class="unseen" role="status" aria-live="polite">{words.long}</p>
      <div class="bar" role="toolbar" aria-label="Machine">
        <Buffered stream={stream} machine={machine} />
        <button class="tool" ref={back} onClick={onBack} title="Back to the images (Esc)">
          <Icon name="back" /> <span class="wide">Back</span>
        </button>
        <div class="bar-title">
          <h1 id="screen-title">{name}</h1>
          <p><span class={`dot ${words.short.toLowerCase()}`} /> {words.short}
            {machine && <span class="wide"> · {shortName(machine.image_name).split("/").pop()}</span>}</p>
        </div>
        <span class="grow" />
        <Figures stream={stream} machine={machine} />
        <div class="tools">
          <button class="tool" aria-pressed={keepEscape} onClick={toggleEscape} title="Which key leaves the screen">
            <Icon name="keys" /> <span class="wide">Esc to guest</span>
          </button>
          <button class="tool" onClick={() => screen.current?.sendCtrlAltDel()} disabled={link !== "connected"}>
            <span class="narrow">C-A-D</span><span class="wide">Ctrl+Alt+Del</span>
          </button>
          <button class="tool" onClick={() => setCapturing(true)} disabled={!awake} title="Capture (c)" aria-label="Capture">
            <Icon name="camera" />
          </button>
          <button class="tool" onClick={() => setForking(true)} disabled={!awake} title="Fork (n)" aria-label="Fork">
            <Icon name="fork" />
          </button>
          <button class="tool" onClick={() => void restart()} title="Restart from its disks" aria-label="Restart">
            <Icon name="restart" />
          </button>
          <button class="tool" onClick={() => void stop(name)} disabled={!awake} title="Stop" aria-label="Stop">
            <Icon name="stop" />
          </button>
          <button class="tool" onClick={full} title="Full screen (f)" aria-label="Full screen">
            <Icon name="full" />
          </button>
        </div>
      </div>
      {capturing && machine && <Capture machine={machine} onClose={() => setCapturing(false)} />}
      {forking && machine && <Fork machine={machine} onClose={() => setForking(false)} />}
    </main>
  );
}
