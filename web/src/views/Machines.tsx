import { useEffect, useState } from "preact/hooks";
import * as acts from "../acts";
import { api, isAwake, isLent, type Image, type Machine } from "../api";
import { ago, bytes, matches, shortName } from "../format";
import { go } from "../live";
import { Icon, type IconName } from "../parts/Icon";
import { Thumb } from "../parts/Thumb";
import { Capture } from "./Capture";

/** How often the small screens are taken anew, while somebody looks. */
const SHOT_EVERY_MS = 15_000;

/** The machine's screen as a picture that is renewed now and then. */
function useShot(machine: Machine): string | null {
  const [shot, setShot] = useState<string | null>(null);
  const { name, status } = machine;
  const drawn = status === "running" || isLent(machine);
  useEffect(() => {
    if (!drawn) return setShot(null);
    let address: string | null = null;
    let gone = false;
    const take = async (): Promise<void> => {
      if (document.visibilityState === "hidden") return;
      try {
        const picture = URL.createObjectURL(await api.screenshot(name));
        if (gone) return URL.revokeObjectURL(picture);
        if (address) URL.revokeObjectURL(address);
        address = picture;
        setShot(picture);
      } catch {
        // without a screen the drawn picture stays
      }
    };
    void take();
    const timer = setInterval(() => void take(), SHOT_EVERY_MS);
    return () => {
      gone = true;
      clearInterval(timer);
      if (address) URL.revokeObjectURL(address);
    };
  }, [name, drawn]);
  return shot;
}

function MachineCard(props: { machine: Machine; image: Image | undefined; onDetails: (machine: string) => void }) {
  const { machine, image } = props;
  const [capturing, setCapturing] = useState(false);
  const shot = useShot(machine);
  const { name, status } = machine;
  const awake = isAwake(status);
  const lent = isLent(machine);
  const shown = awake || lent;
  const paused = acts.isPaused(machine);
  const parked = status === "parked";
  const start = (): void => void (parked ? acts.wake(name) : acts.start(name));
  const show = (): void => go(`machine/${encodeURIComponent(name)}`);
  const thumb = image?.thumbnail ? `/v1/images/${image.id}/thumbnail` : null;
  const source = shortName(machine.image_name).split("/").pop() ?? "";
  const facts = [source, bytes(machine.memory_bytes), ago(machine.created_unix_s)];
  const button = (icon: IconName, label: string, title: string, act: () => void) => (
    <button class="quiet" aria-label={label} title={title} onClick={act}>
      <Icon name={icon} />
    </button>
  );
  return (
    <li class="card machine" data-machine={name}>
      <button
        class="card-open"
        aria-label={shown ? `Show the screen of ${name}` : `${parked ? "Wake" : "Start"} ${name}`}
        onClick={() => (shown ? show() : start())}
      >
        <Thumb src={shown ? (shot ?? thumb) : thumb} seed={machine.image} />
        <span class={`status ${status}`}>{status}</span>
      </button>
      <div class="card-text">
        {/* for the mouse: the keyboard has the picture and the button for details. A name alone starts nothing */}
        <h3 title={name} onClick={() => (shown ? show() : props.onDetails(name))}>{name}</h3>
        <div class="card-actions">
          {button("info", `Details of ${name}`, "Details (i)", () => props.onDetails(name))}
          {awake && button(paused ? "play" : "pause", `${paused ? "Resume" : "Pause"} ${name}`, paused ? "Resume" : "Pause", () => void acts.pauseOrResume(machine))}
          {lent ? null : awake
            ? button("stop", `Stop ${name}`, "Stop", () => void acts.stop(machine, () => setCapturing(true)))
            : parked
              ? button("play", `Wake ${name}`, "Wake", start)
              : button("play", `Start ${name} from its disks`, "Start", start)}
          {button("trash", `Remove ${name}`, "Remove", () => void acts.remove(machine))}
        </div>
        <p class="facts" title={machine.image_name}>{facts.map((fact) => <span key={fact}>{fact}</span>)}</p>
        {machine.detail && <p class="detail" title={machine.detail}>{machine.detail}</p>}
      </div>
      {capturing && <Capture machine={machine} onClose={() => setCapturing(false)} />}
    </li>
  );
}

export function Machines(props: {
  machines: Machine[];
  images: Image[];
  search: string;
  onDetails: (machine: string) => void;
}) {
  const { images, search } = props;
  if (props.machines.length === 0) return null;
  const machines = props.machines.filter((one) => matches(search, [one.name, one.image_name, one.status]));
  const awake = machines.filter((machine) => machine.status === "running").length;
  const order = machines.sort((a, b) => b.created_unix_s - a.created_unix_s);
  const all = machines.length === props.machines.length;
  return (
    <section aria-labelledby="machines-title">
      <div class="section-head">
        <h2 id="machines-title">Machines</h2>
        <p class="count" role="status">{all ? "" : `${machines.length} of ${props.machines.length}, `}{awake} running</p>
      </div>
      {machines.length === 0 && <p class="hint">No machine matches “{search}”.</p>}
      <ul class="grid strip">
        {order.map((machine) => (
          <MachineCard
            key={machine.name}
            machine={machine}
            image={images.find((image) => image.id === machine.image)}
            onDetails={props.onDetails}
          />
        ))}
      </ul>
    </section>
  );
}
