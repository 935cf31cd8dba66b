import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { api, logAddress, type Forward, type Image, type ImageDetail, type Machine, type PauseReason, type Restart } from "../api";
import { ago, bytes, duration, shortName, titleOf } from "../format";
import { go, type Live } from "../live";
import { Dialog } from "../parts/Dialog";
import { Icon } from "../parts/Icon";
import { wordsOf } from "../parts/notices";
import { Hardware } from "./Hardware";
import { Offload } from "./Offload";

/** What details are shown of: a machine by its name, or an image by its id. */
export type Subject = { machine: string; image?: undefined } | { image: string; machine?: undefined };

type Rows = [string, ComponentChildren][];

/** Names and values; what has no value is left out. */
function List({ rows }: { rows: Rows }) {
  const shown = rows.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  return (
    <dl class="rows">
      {shown.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

const when = (unixSeconds: number): string => `${new Date(unixSeconds * 1000).toLocaleString()} (${ago(unixSeconds)})`;

const PAUSES: Record<PauseReason, string> = {
  user: "its user paused it",
  buffering: "what it needs next has not arrived yet",
  orphaned: "its parent’s node does not answer",
  capture: "its state is being captured or forked",
  disk: "a disk can’t be written",
  source: "its source does not send a page of its memory",
};

function forwardText(one: Forward): string {
  const udp = one.protocol === "udp" ? "/udp" : "";
  return `${one.host_address}:${one.host_port} → guest ${one.guest_port}${udp}`;
}

function limitsText(limits: NonNullable<Machine["limits"]>): string {
  const { cpu_millicores: cpu, memory_max_bytes: memory, io_weight: weight, io_cap_percent: cap, io_timeout_s: timeout, clones } = limits;
  const texts = [
    cpu ? `${cpu / 1000} cores` : "",
    memory ? `${bytes(memory)} of memory` : "",
    weight ? `weight ${weight} at the disk` : "",
    cap ? `${cap} % of the disk while others want it` : "",
    timeout ? `${timeout} s for what no source gives` : "",
    clones ? `${clones} ${clones === 1 ? "clone" : "clones"} that its guest makes` : "",
  ];
  return texts.filter(Boolean).join(", ") || "none";
}

/** When a machine is started again, and how often that was; nothing for one that is not. */
function restartText(policy: Restart | undefined, restarts: number): string {
  if (!policy || policy === "no") return "";
  const again = restarts > 0 ? `; ${restarts} times in a row so far` : "";
  if (policy === "always") return `always, after its host’s restart even if it was stopped${again}`;
  if (policy === "unless_stopped") return `always, unless it was stopped${again}`;
  const { max } = policy.on_failure;
  return `when it fails${max ? `, at most ${max} times in a row` : ""}${again}`;
}

/** Latest events of a machine that are shown. */
const EVENTS_SHOWN = 20;

function MachineDetails(props: { machine: Machine; live: Live; onSubject: (subject: Subject) => void; onClose: () => void }) {
  const { machine, live } = props;
  const { name, stats } = machine;
  const image = live.images?.find((one) => one.id === machine.image);
  const events = live.events.filter((one) => one.subject === name).slice(-EVENTS_SHOWN).reverse();
  const paused = machine.paused_for?.map((reason) => PAUSES[reason]).join(" and ");
  return (
    <>
      <List
        rows={[
          ["State", `${machine.status}${paused ? `, stands still because ${paused}` : ""}`],
          ["Reason", machine.detail],
          ["Last stop", machine.switched_off && "switched off: its guest did not power down in time"],
          [
            "Image",
            image ? (
              <button class="link" onClick={() => props.onSubject({ image: image.id })}>{shortName(machine.image_name)}</button>
            ) : (
              shortName(machine.image_name)
            ),
          ],
          ["Made", when(machine.created_unix_s)],
          ["Began", machine.restored ? "restored from a running state" : "booted from its disks"],
          ["Starts again", restartText(machine.restart, machine.restarts ?? 0)],
          ["Once ended", machine.remove && "it is removed with its disks"],
          ["Clone", machine.cloned && `number ${machine.cloned.number} of ${machine.cloned.parent}`],
          ["Processors", `${machine.cpus} (${machine.accel})`],
          [
            "Memory",
            bytes(machine.memory_bytes) + (machine.memory_unused_bytes ? `, ${bytes(machine.memory_unused_bytes)} of it not in use in its guest` : ""),
          ],
          ["In use", stats.memory_bytes > 0 && `${bytes(stats.memory_bytes)} of the host’s memory, ${duration(stats.cpu_us / 1000)} of its processors`],
          ["Disk use", `${bytes(stats.overlay_bytes)} that differ from the image`],
          ["Limits", limitsText(machine.limits ?? {})],
          ["Ports", machine.forwards.length > 0 ? <ul>{machine.forwards.map((one) => <li key={forwardText(one)}><code>{forwardText(one)}</code></li>)}</ul> : "none are forwarded"],
          ["Addresses", machine.network ? <code>{machine.network.address}, gateway {machine.network.gateway}</code> : "10.0.2.15 by DHCP, behind its own QEMU"],
          ["Streams from", machine.sources.length > 0 && <ul>{machine.sources.map((one) => <li key={one}><code>{one}</code></li>)}</ul>],
          ["Fetched", machine.sources.length > 0 && `${bytes(stats.wire_bytes)}; ${stats.misses} touches had to wait`],
        ]}
      />
      <p class="buttons">
        <button onClick={() => { props.onClose(); go(`machine/${encodeURIComponent(name)}`); }}>
          <Icon name="play" /> Screen and console
        </button>
        <a class="button" href={logAddress(name)} download={`${name}.log`}><Icon name="link" /> Console’s log</a>
      </p>
      <Offload machine={machine} />
      <Hardware machine={machine} />
      <h3>Events since this page was opened</h3>
      {events.length === 0 && <p class="hint">None.</p>}
      <ul class="events">
        {events.map((one) => (
          <li key={`${one.time_unix_ms}${one.kind}`}>
            <time>{new Date(one.time_unix_ms).toLocaleTimeString()}</time>
            <span>{one.kind.replace("machine.", "")}{one.detail && `: ${one.detail}`}</span>
          </li>
        ))}
      </ul>
    </>
  );
}

/** The images that an image's layers are in: itself, its parent, and so on as far as they are here. */
function layersOf(image: Image, images: Image[]): (Image | string)[] {
  const layers: (Image | string)[] = [image];
  for (let parent = image.parent; parent; ) {
    const found = images.find((one) => one.id === parent);
    // a circle can't be: an image's id is the hash of what names its parent
    layers.push(found ?? parent);
    parent = found?.parent ?? null;
  }
  return layers;
}

function ImageDetails(props: { image: ImageDetail; live: Live; onSubject: (subject: Subject) => void; onStart: (image: Image, own?: boolean) => void }) {
  const { image, live } = props;
  const machines = live.machines.filter((one) => one.image === image.id);
  const layers = layersOf(image, live.images ?? []);
  const growable = image.hardware_profile > 1 ? "processors, memory, cards and disks can be added while it runs" : "as started";
  return (
    <>
      <List
        rows={[
          ["Names", image.names.map(shortName).join(", ")],
          ["Id", <code class="id">{image.id}</code>],
          ["Created", when(image.created_unix_s)],
          ["Holds", image.live ? "a running machine’s state" : "disks to boot from"],
          ["Stored", bytes(image.stored_bytes)],
          ["Own", `${bytes(image.stored_bytes - image.shared_bytes)}: removing the image frees these`],
          ["Shared", `${bytes(image.shared_bytes)}, which other images need as well`],
          ["In full", bytes(image.virtual_bytes)],
          ["Starts in", image.start_ms !== null && `${duration(image.start_ms)}, here`],
          ["Processors", image.cpus ?? ""],
          ["Memory", image.memory_bytes !== null && bytes(image.memory_bytes)],
          ["Hardware", `profile ${image.hardware_profile}: ${growable}`],
          ["Captured on", [image.machine_type, image.qemu_version && `QEMU ${image.qemu_version}`, image.accel, image.cpu_model].filter(Boolean).join(", ")],
          ["Kernel line", image.cmdline && <code>{image.cmdline}</code>],
          ["Labels", Object.entries(image.labels).map(([key, value]) => `${key}=${value}`).join(", ")],
          [
            "Machines",
            machines.length > 0 && (
              <ul>{machines.map((one) => <li key={one.name}><button class="link" onClick={() => props.onSubject({ machine: one.name })}>{one.name}</button></li>)}</ul>
            ),
          ],
        ]}
      />
      <p class="buttons">
        <button class="primary" onClick={() => props.onStart(image)}><Icon name="play" /> Start</button>
        {image.live && image.labels[AGENT_LABEL] && (
          <button aria-description={OWN} title={OWN} onClick={() => props.onStart(image, true)}>Start as a machine of its own</button>
        )}
      </p>
      <h3>Layers</h3>
      <ol class="layers">
        {layers.map((one, index) => (
          <li key={typeof one === "string" ? one : one.id}>
            {typeof one === "string" ? (
              <span><code>{one.slice(0, 12)}</code> (not here any more)</span>
            ) : index === 0 ? (
              <span>{titleOf(one)}: this image</span>
            ) : (
              <button class="link" onClick={() => props.onSubject({ image: one.id })}>{titleOf(one)}</button>
            )}
          </li>
        ))}
      </ol>
      <h3>Regions</h3>
      <div class="scrolls" tabIndex={0} role="group" aria-label="Regions">
        <table>
          <thead><tr><th scope="col">Name</th><th scope="col">Size</th><th scope="col">Not empty, at most</th></tr></thead>
          <tbody>
            {image.regions.map((one) => (
              <tr key={one.name}><th scope="row">{one.name}</th><td>{bytes(one.bytes)}</td><td>{bytes(Math.min(one.bytes, one.segments * SEGMENT_BYTES))}</td></tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

/** The label of an image in whose guest floe’s agent ran: it can give the machine an identity of its own. */
const AGENT_LABEL = "floe.agent";
const OWN = "With a host name, machine id, network address and host keys that no other machine has. Started otherwise, it goes on as the machine that was captured.";

/** What a segment of a region covers: 1024 chunks of 4 KiB. */
const SEGMENT_BYTES = 4 << 20;

/** Everything that the node knows of one machine or image, at the page's side. */
export function Details(props: {
  subject: Subject;
  live: Live;
  onSubject: (subject: Subject) => void;
  onStart: (image: Image, own?: boolean) => void;
  onClose: () => void;
}) {
  const { subject, live } = props;
  const [image, setImage] = useState<ImageDetail | null>(null);
  const [machine, setMachine] = useState<Machine | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const key = subject.machine ?? subject.image ?? "";
  useEffect(() => {
    let ended = false;
    const failed = (error: unknown): void => {
      if (!ended) setProblem(wordsOf(error)?.text ?? null);
    };
    setProblem(null);
    if (subject.image) api.image(subject.image).then((one) => !ended && setImage(one), failed);
    // again with the list: what its events tell may have changed it
    if (subject.machine) api.machine(subject.machine).then((one) => !ended && setMachine(one), failed);
    return () => {
      ended = true;
    };
  }, [key, live.machines]);
  const title = subject.machine ?? (image?.id === key ? titleOf(image) : key.slice(0, 12));
  return (
    <Dialog title={title} class="drawer" onClose={props.onClose}>
      {problem && <p class="problem" role="alert">{problem}</p>}
      {subject.machine && machine?.name === subject.machine && <MachineDetails {...props} machine={machine} />}
      {subject.image && image?.id === subject.image && <ImageDetails {...props} image={image} />}
    </Dialog>
  );
}
