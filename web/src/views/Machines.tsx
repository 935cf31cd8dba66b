import { useEffect, useState } from "preact/hooks";
import { api, isAwake, type Image, type Machine } from "../api";
import { ago, shortName } from "../format";
import { go } from "../live";
import { Icon } from "../parts/Icon";
import { complain, tell } from "../parts/notices";
import { Thumb } from "../parts/Thumb";

/** How often the small screens are taken anew, while somebody looks. */
const SHOT_EVERY_MS = 15_000;

/** The machine's screen as a picture that is renewed now and then. */
function useShot(machine: Machine): string | null {
  const [shot, setShot] = useState<string | null>(null);
  const { name, status } = machine;
  useEffect(() => {
    if (status !== "running") return setShot(null);
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
  }, [name, status]);
  return shot;
}

export async function stop(name: string, now = true): Promise<void> {
  await api.stop(name, now).then(() => tell(`${name} is stopped; its disks are kept.`), complain);
}

export async function start(name: string): Promise<void> {
  await api.start(name, () => undefined).then(() => tell(`${name} runs again, from its disks.`), complain);
}

function MachineCard({ machine, image }: { machine: Machine; image: Image | undefined }) {
  const shot = useShot(machine);
  const { name, status } = machine;
  const awake = isAwake(status);
  const thumb = image?.thumbnail ? `/v1/images/${image.id}/thumbnail` : null;
  const source = shortName(machine.image_name).split("/").pop() ?? "";
  const facts = [source, `${machine.memory_bytes / 2 ** 20} MiB`, ago(machine.created_unix_s)];
  const remove = (): void => {
    if (confirm(`Remove ${name} with its disks?`)) void api.remove(name).catch(complain);
  };
  return (
    <li class="card machine">
      <button
        class="card-open"
        aria-label={awake ? `Show the screen of ${name}` : `Start ${name}`}
        onClick={() => (awake ? go(`machine/${encodeURIComponent(name)}`) : void start(name))}
      >
        <Thumb src={awake ? (shot ?? thumb) : thumb} seed={machine.image} />
        <span class={`status ${status}`}>{status}</span>
      </button>
      <div class="card-text">
        <h3>{name}</h3>
        <div class="card-actions">
          {awake ? (
            <button class="quiet" aria-label={`Stop ${name}`} title="Stop" onClick={() => void stop(name)}>
              <Icon name="stop" />
            </button>
          ) : (
            <button class="quiet" aria-label={`Start ${name} from its disks`} title="Start" onClick={() => void start(name)}>
              <Icon name="play" />
            </button>
          )}
          <button class="quiet" aria-label={`Remove ${name}`} title="Remove" onClick={remove}>
            <Icon name="trash" />
          </button>
        </div>
        <p class="facts">{facts.join(" · ")}</p>
        {machine.detail && <p class="detail" title={machine.detail}>{machine.detail}</p>}
      </div>
    </li>
  );
}

export function Machines({ machines, images }: { machines: Machine[]; images: Image[] }) {
  if (machines.length === 0) return null;
  const awake = machines.filter((machine) => machine.status === "running").length;
  const order = [...machines].sort((a, b) => b.created_unix_s - a.created_unix_s);
  return (
    <section aria-labelledby="machines-title">
      <div class="section-head">
        <h2 id="machines-title">Machines</h2>
        <p class="count">{awake} running</p>
      </div>
      <ul class="grid strip">
        {order.map((machine) => (
          <MachineCard key={machine.name} machine={machine} image={images.find((image) => image.id === machine.image)} />
        ))}
      </ul>
    </section>
  );
}
