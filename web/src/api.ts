/** The node's REST interface, as the page uses it. docs/openapi-node.json has all of it. */

export interface Image {
  id: string;
  names: string[];
  created_unix_s: number;
  parent: string | null;
  stored_bytes: number;
  shared_bytes: number;
  virtual_bytes: number;
  live: boolean;
  thumbnail: boolean;
  labels: Record<string, string>;
  start_ms: number | null;
}

/** An image in full. */
export interface ImageDetail extends Image {
  regions: { name: string; bytes: number; segments: number }[];
  packs: number;
  machine_type: string | null;
  qemu_version: string | null;
  accel: string | null;
  cpu_model: string | null;
  cpus: number | null;
  memory_bytes: number | null;
  cmdline: string | null;
  hardware_profile: number;
}

export type Status = "starting" | "running" | "buffering" | "paused" | "stopped" | "parked" | "failed";

/** Whether there is a QEMU, and with it a screen. */
export const isAwake = (status: Status | undefined): boolean =>
  status === "running" || status === "buffering" || status === "paused";

export interface Machine {
  name: string;
  status: Status;
  detail: string;
  image: string;
  image_name: string;
  restored: boolean;
  memory_bytes: number;
  /** Of that, what its guest is not known to use. */
  memory_unused_bytes?: number;
  /** The most that it can be given while it runs; so for processors. */
  memory_bytes_max: number;
  cpus: number;
  cpus_max: number;
  /** Network cards that it was given while it ran. */
  cards?: string[];
  accel: string;
  created_unix_s: number;
  sources: string[];
  stats: { misses: number; wire_bytes: number; overlay_bytes: number; cpu_us: number; memory_bytes: number };
  forwards: Forward[];
  cloned?: { parent: string; number: number };
  /** Its place in its family's network. */
  network?: { address: string; mac: string; gateway: string };
  limits?: { cpu_millicores?: number; memory_max_bytes?: number; io_weight?: number; io_cap_percent?: number; io_timeout_s?: number; clones?: number };
  paused_for?: PauseReason[];
  switched_off?: boolean;
  /** Whether it is removed with its disks once it has ended. */
  remove?: boolean;
  /** When it is started again once it has ended; absent for never. */
  restart?: Restart;
  /** How often in a row it has ended soon and was started again. */
  restarts?: number;
  /** How it stands if another node has it, or may have it, and which one. */
  moves?: { standing: string; node?: string };
}

/** Whether another node has borrowed it, and runs it: its screen is shown here all the same. */
export const isLent = (machine: Machine | null): boolean => machine?.moves?.standing === "lent";

export type Restart = "no" | "always" | "unless_stopped" | { on_failure: { max?: number } };

export interface Forward {
  protocol: "tcp" | "udp";
  host_address: string;
  host_port: number;
  guest_port: number;
}

export type PauseReason = "user" | "buffering" | "orphaned" | "capture" | "disk" | "source";

/** Where a guest shows itself: on its screen, on its serial console, or on neither yet. */
export type Face = "screen" | "console";

/** What streams into a machine. `buffering` is set while it stands still until enough has arrived. */
export interface Stream {
  state: string;
  buffering: { missing_bytes: number; eta_s: number } | null;
  planned_chunks: number;
  buffered_chunks: number;
  misses: number;
  touched: number;
  fetched_bytes: number;
  saved_bytes: number;
  rate_bytes_s: number;
  fetch_ratio: number;
  pauses: number;
  paused_s: number;
}

/** How a machine's CPUs share the host's cores. What is absent is not known, or nothing wanted to run. */
export interface Shares {
  name: string;
  vcpus: number;
  stacking_pct?: number;
  lag_ms?: number;
  steal_pct?: number;
}

export interface Outcome {
  total_ms: number;
  machine?: Machine;
  image?: Image;
  pause_ms?: number;
  fork?: { clones: Clone[] };
  /** What a guest has not done of what was asked for. */
  resized?: { after: Size; short?: Problem[] };
  moved?: { to: string; down_ms: number; trouble?: string };
  disk?: { name: string; disk: string; bytes: number; in_use?: boolean };
}

export interface Size {
  cpus: number;
  memory_bytes: number;
}

export interface Disk {
  name: string;
  alias?: string;
  bytes: number;
}

/** How this node and others bring each other one image of a hub. */
export interface Swarm {
  image: string;
  hub: string;
  machines: string[];
  /** Whether it is given to others also without a machine, and until how many of them have had all of it; absent: until that is ended. */
  seeding: boolean;
  seed_until?: number;
  /** Other nodes that have had all of it. */
  complete: number;
  /** The way by which its pieces come, of a fork what its clones lack, and why in the node's words. */
  way: "hub" | "swarm" | "multicast" | "parent";
  why?: string;
  pieces_here: number;
  pieces: number;
  /** Pieces that machines wait for. */
  needed: number;
  hub_bytes: number;
  received_bytes: number;
  sent_bytes: number;
  lent?: SwarmLent;
  peers: SwarmPeer[];
  /** Absent if nothing is wrong. */
  trouble?: string;
}

/** Where the clones of a fork got what they lacked, in bytes of chunks. */
export interface SwarmLent {
  shelf_bytes: number;
  swarm_bytes: number;
  parent_bytes: number;
  /** How long a chunk would have taken by either way when that was decided last; absent before both were measured. */
  swarm_us?: number;
  parent_us?: number;
}

export interface SwarmPeer {
  key: string;
  addresses: string[];
  linked: boolean;
  pieces: number;
  received_bytes: number;
  sent_bytes: number;
  /** Why nothing is exchanged with it any more. */
  dropped?: string;
}

/** What became of one clone of a fork. */
export interface Clone {
  name: string;
  state: "running" | "failed" | "not_granted";
  detail?: string;
}

export type Step =
  | { event: "stage"; name: string; ms: number }
  | { event: "progress"; name: string; done: number; total: number; unit: string }
  | { event: "note"; message: string }
  | ({ event: "done" } & Outcome)
  | ({ event: "error" } & Problem);

export interface Problem {
  code: string;
  message: string;
  fix: string;
}

/** What the node refused, in its own words. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    readonly problem: Problem,
  ) {
    super(problem.message);
  }
}

async function refusal(response: Response): Promise<Refusal> {
  const text = await response.text();
  let problem: Problem = { code: "failed", message: text || response.statusText, fix: "" };
  try {
    problem = { ...problem, ...(JSON.parse(text) as Partial<Problem>) };
  } catch {
    // a proxy's page, or nothing at all: its text is all there is
  }
  return new Refusal(response.status, problem);
}

async function call(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const init: RequestInit = { method };
  if (signal) init.signal = signal;
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { "content-type": "application/json" };
  }
  const response = await fetch(path, init);
  if (!response.ok) throw await refusal(response);
  return response;
}

async function json<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  return (await call(method, path, body, signal).then((response) => response.json())) as T;
}

/** The objects of an answer that has one a line, as they come. */
async function* lines<T>(response: Response): AsyncGenerator<T> {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop() ?? "";
    for (const part of parts) if (part) yield JSON.parse(part) as T;
  }
}

/** A long call: tells each step, and ends with its outcome. Aborting it makes the node undo what it began. */
async function long(
  path: string,
  body: unknown,
  tell: (step: Step) => void,
  signal?: AbortSignal,
): Promise<Outcome> {
  for await (const step of lines<Step>(await call("POST", path, body, signal))) {
    tell(step);
    if (step.event === "done") return step;
    if (step.event === "error") throw new Refusal(0, step);
  }
  throw new Refusal(0, { code: "failed", message: "the node's answer broke off", fix: "see its log" });
}

const machinePath = (name: string): string => `/v1/machines/${encodeURIComponent(name)}`;

export const api = {
  images: (): Promise<Image[]> => json<{ images: Image[] }>("GET", "/v1/images").then((list) => list.images),
  machines: (): Promise<Machine[]> =>
    json<{ machines: Machine[] }>("GET", "/v1/machines").then((list) => list.machines),
  machine: (name: string): Promise<Machine> => json("GET", machinePath(name)),
  stream: (name: string): Promise<Stream> => json("GET", `${machinePath(name)}/stream`),
  /** `null` if the node does not know the machine's CPUs, `false` if it does not look after any. */
  shares: (name: string): Promise<Shares | null | false> =>
    json<{ order: string; machines: Shares[] }>("GET", "/v1/sched").then(
      (told) => told.order !== "off" && (told.machines.find((one) => one.name === name) ?? null),
    ),
  image: (image: string): Promise<ImageDetail> => json("GET", `/v1/image?image=${encodeURIComponent(image)}`),
  face: (name: string): Promise<Face | null> =>
    json<{ face?: Face }>("GET", `${machinePath(name)}/console`).then((answer) => answer.face ?? null),
  swarms: (): Promise<Swarm[]> => json<{ swarms: Swarm[] }>("GET", "/v1/swarm").then((report) => report.swarms),
  /** The other nodes of this one's cluster. */
  paired: (): Promise<string[]> =>
    json<{ members?: { name: string; this: boolean }[] }>("GET", "/v1/cluster").then((cluster) =>
      (cluster.members ?? []).filter((one) => !one.this).map((one) => one.name),
    ),
  disks: (name: string): Promise<Disk[]> =>
    json<{ disks: Disk[] }>("GET", `${machinePath(name)}/disks`).then((list) => list.disks),
  attachCard: (name: string): Promise<{ card: string; in_use: boolean }> => json("POST", `${machinePath(name)}/cards`, {}),
  detachCard: (name: string, card: string): Promise<null> =>
    json("DELETE", `${machinePath(name)}/cards/${encodeURIComponent(card)}`),
  detachDisk: (name: string, disk: string): Promise<null> =>
    json("DELETE", `${machinePath(name)}/disks/${encodeURIComponent(disk)}`),
  pause: (name: string): Promise<Machine> => json("POST", `${machinePath(name)}/pause`),
  resume: (name: string): Promise<Machine> => json("POST", `${machinePath(name)}/resume`),
  stop: (name: string, now: boolean): Promise<Machine> => json("POST", `${machinePath(name)}/stop`, { now }),
  remove: (name: string): Promise<null> => json("DELETE", `${machinePath(name)}?force=true`),
  screenshot: (name: string): Promise<Blob> =>
    call("POST", `${machinePath(name)}/screenshot`).then((response) => response.blob()),
  removeImage: (image: string): Promise<unknown> => json("POST", "/v1/images/remove", { image }),
  dropUpload: (id: string): Promise<unknown> => json("DELETE", `/v1/uploads/${id}`),

  /** `own`: it becomes a machine of its own, instead of going on as the one that was captured. */
  run: (image: string, own: boolean, tell: (step: Step) => void, signal: AbortSignal): Promise<Outcome> =>
    long("/v1/machines", own ? { image, own_identity: true } : { image }, tell, signal),
  start: (name: string, tell: (step: Step) => void): Promise<Outcome> => long(`${machinePath(name)}/start`, {}, tell),
  park: (name: string, tell: (step: Step) => void): Promise<Outcome> => long(`${machinePath(name)}/park`, null, tell),
  capture: (name: string, as: string, tell: (step: Step) => void, signal: AbortSignal): Promise<Outcome> =>
    long(`${machinePath(name)}/capture`, { name: as || null }, tell, signal),
  resize: (name: string, size: Partial<Size>, tell: (step: Step) => void, signal: AbortSignal): Promise<Outcome> =>
    long(`${machinePath(name)}/size`, size, tell, signal),
  attachDisk: (
    name: string,
    disk: string,
    content: { bytes: number } | { path: string; format?: "raw" },
    tell: (step: Step) => void,
    signal: AbortSignal,
  ): Promise<Outcome> => long(`${machinePath(name)}/disks/${encodeURIComponent(disk)}`, content, tell, signal),
  fork: (name: string, clones: number, tell: (step: Step) => void, signal: AbortSignal): Promise<Outcome> =>
    long(`${machinePath(name)}/fork`, { clones }, tell, signal),
  offload: (name: string, to: string, size: Partial<Size>, tell: (step: Step) => void, signal: AbortSignal): Promise<Outcome> =>
    long(`${machinePath(name)}/move`, { to, lend: true, ...size }, tell, signal),
  recall: (name: string, tell: (step: Step) => void, signal: AbortSignal): Promise<Outcome> =>
    long(`${machinePath(name)}/recall`, {}, tell, signal),
  pull: (from: string, tell: (step: Step) => void, signal: AbortSignal): Promise<Outcome> =>
    long("/v1/images/pull", { from }, tell, signal),
  import: (request: Import, tell: (step: Step) => void, signal: AbortSignal): Promise<Outcome> =>
    long("/v1/images/import", request, tell, signal),

  /** What happens on the node, until the connection ends. */
  async *events(signal: AbortSignal): AsyncGenerator<Happening> {
    yield* lines(await call("GET", "/v1/events", undefined, signal));
  },
};

export interface Happening {
  time_unix_ms: number;
  kind: string;
  subject: string;
  detail: string;
}

export interface Import {
  disks: string[];
  kernel: string | null;
  initrd: string | null;
  cmdline: string | null;
  name: string | null;
  memory_bytes: number | null;
  /** Empty: the one that is installed with the node. */
  agent: string | null;
}

export interface Upload {
  id: string;
  path: string;
  bytes: number;
}

/** Sends a file to the node, which keeps it until it is imported. `fetch` tells nothing of a body's progress. */
export function upload(file: File, tell: (sent: number) => void, signal: AbortSignal): Promise<Upload> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const fail = (status: number, message: string): void =>
      reject(new Refusal(status, { code: "failed", message, fix: "is the node still running?" }));
    request.upload.onprogress = (event) => tell(event.loaded);
    request.onerror = () => fail(0, `sending ${file.name} broke off`);
    request.onabort = () => reject(new DOMException("stopped", "AbortError"));
    request.onload = () => {
      if (request.status === 200) return resolve(JSON.parse(request.responseText) as Upload);
      try {
        reject(new Refusal(request.status, JSON.parse(request.responseText) as Problem));
      } catch {
        fail(request.status, request.statusText);
      }
    };
    signal.addEventListener("abort", () => request.abort(), { once: true });
    request.open("POST", "/v1/uploads");
    request.send(file);
  });
}

export const thumbnailOf = (image: Pick<Image, "id" | "thumbnail">): string | null =>
  image.thumbnail ? `/v1/images/${image.id}/thumbnail` : null;

function socketAddress(machine: string, what: string): string {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  return `${scheme}://${location.host}${machinePath(machine)}/${what}`;
}

export const vncAddress = (machine: string): string => socketAddress(machine, "vnc");
export const terminalAddress = (machine: string): string => socketAddress(machine, "terminal");
export const logAddress = (machine: string): string => `${machinePath(machine)}/logs`;
