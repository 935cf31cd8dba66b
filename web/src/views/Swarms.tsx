import { useEffect, useState } from "preact/hooks";
import { api, type Image, type Machine, type Swarm, type SwarmLent, type SwarmPeer } from "../api";
import { bytes, matches, shortName, titleOf } from "../format";
import { Meter } from "../parts/Meter";

/** How often swarms are looked at while somebody looks at the page: no event tells of what comes and goes. */
const LOOK_EVERY_MS = 3000;
/** Most nodes that are shown of a swarm: those that gave and got most. */
const NODES_SHOWN = 50;

/** The swarms of the node, looked at again and again, and at once when its machines change. */
function useSwarms(machines: Machine[]): Swarm[] {
  const [swarms, setSwarms] = useState<Swarm[]>([]);
  useEffect(() => {
    let ended = false;
    let timer = 0;
    const look = async (): Promise<void> => {
      if (document.visibilityState !== "hidden") {
        // a node that does not answer is told of above
        const seen = await api.swarms().catch(() => null);
        if (ended) return;
        if (seen) setSwarms(seen);
      }
      timer = window.setTimeout(() => void look(), LOOK_EVERY_MS);
    };
    void look();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [machines]);
  return swarms;
}

function nameOf(swarm: Swarm, machines: Machine[], images: Image[]): string {
  const image = images.find((one) => one.id === swarm.image);
  if (image) return titleOf(image);
  const machine = machines.find((one) => one.image === swarm.image);
  return machine ? shortName(machine.image_name) : swarm.image.slice(0, 12);
}

const WAYS: Record<Swarm["way"], string> = {
  hub: "Its pieces come from the hub",
  swarm: "Its pieces come from other nodes, and from the hub what none of them has",
  multicast: "What its clones lack comes by multicast, and what they miss of that from its parent's host",
  parent: "What its clones lack comes from its parent's host",
};

const isFork = ({ way }: Swarm): boolean => way === "multicast" || way === "parent";

/** Which way its pieces come, and why. */
const wayOf = ({ way, why }: Swarm): string => `${WAYS[way]}${why ? `: ${why}` : ""}.`;

/** From where a fork's clones got what they lacked, and by which figures that was decided. */
function lentOf({ shelf_bytes, swarm_bytes, parent_bytes, swarm_us, parent_us }: SwarmLent): string {
  const here = `Of what its clones lacked, ${bytes(shelf_bytes)} were in pieces here`;
  const came = `${here}, ${bytes(swarm_bytes)} came by a swarm and ${bytes(parent_bytes)} from the parent's host`;
  if (swarm_us === undefined || parent_us === undefined) return `${came}.`;
  const ms = (us: number): string => `${(us / 1000).toFixed(1)} ms`;
  return `${came}; a chunk takes ${ms(swarm_us)} by the swarm, ${ms(parent_us)} from that host.`;
}

function factsOf(swarm: Swarm): string[] {
  const { machines, needed, seeding, seed_until: until, complete } = swarm;
  const given = until === undefined ? "given until floe swarm leave" : `given until ${until} others have had all of it`;
  return [
    ...machines,
    ...(seeding ? [given] : []),
    ...(isFork(swarm) ? [] : [`have had all of it: ${complete}`]),
    ...(needed > 0 ? [`waited for: ${needed} pieces`] : []),
  ];
}

function stateOf(peer: SwarmPeer): string {
  if (peer.dropped !== undefined) return `dropped: ${peer.dropped}`;
  return peer.linked ? "connected" : "known";
}

const moved = (peer: SwarmPeer): number => peer.received_bytes + peer.sent_bytes;

/** Who gave how much of an image: its hub, then other nodes. */
function Givers({ swarm, title }: { swarm: Swarm; title: string }) {
  const order = [...swarm.peers].sort((a, b) => moved(b) - moved(a));
  const hidden = order.length - NODES_SHOWN;
  return (
    <>
      <div class="scrolls" tabIndex={0} role="group" aria-label={`Who gave how much of ${title}`}>
        <table>
          <thead>
            <tr><th scope="col">Node</th><th scope="col">State</th><th scope="col">Has</th><th scope="col">Gave</th><th scope="col">Got</th></tr>
          </thead>
          <tbody>
            <tr title={swarm.hub}><th scope="row">the hub</th><td>asked last</td><td>all</td><td>{bytes(swarm.hub_bytes)}</td><td /></tr>
            {order.slice(0, NODES_SHOWN).map((peer) => (
              <tr key={peer.key} title={peer.addresses.join(", ")}>
                <th scope="row"><code>{peer.key.slice(0, 12)}</code></th>
                <td>{stateOf(peer)}</td>
                <td>{peer.pieces > 0 && `${peer.pieces} of ${swarm.pieces}`}</td>
                <td>{bytes(peer.received_bytes)}</td>
                <td>{bytes(peer.sent_bytes)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {hidden > 0 && <p class="hint">And {hidden} more: floe swarm peers lists all of them.</p>}
    </>
  );
}

function SwarmPanel({ swarm, title }: { swarm: Swarm; title: string }) {
  const here = { label: "Pieces on this host", done: swarm.pieces_here, total: swarm.pieces, unit: "pieces" };
  return (
    <li class="swarm">
      <h3 title={title}>{title}</h3>
      <p class="facts">{factsOf(swarm).map((fact) => <span key={fact} title={fact}>{fact}</span>)}</p>
      {swarm.trouble && <p class="problem">{swarm.trouble}</p>}
      <p class="hint">{wayOf(swarm)}</p>
      {swarm.lent && <p class="hint">{lentOf(swarm.lent)}</p>}
      {swarm.pieces > 0 && <Meter progress={here} />}
      {!isFork(swarm) && <Givers swarm={swarm} title={title} />}
    </li>
  );
}

/** The images that this node and others bring each other. */
export function Swarms(props: { machines: Machine[]; images: Image[]; search: string }) {
  const { machines, images, search } = props;
  const all = useSwarms(machines).map((swarm) => ({ swarm, title: nameOf(swarm, machines, images) }));
  const shown = all.filter(({ swarm, title }) => matches(search, [title, swarm.image, swarm.hub, ...swarm.machines]));
  if (shown.length === 0) return null;
  const sum = (of: (swarm: Swarm) => number): string => bytes(shown.reduce((total, { swarm }) => total + of(swarm), 0));
  return (
    <section aria-labelledby="swarms-title">
      <div class="section-head">
        <h2 id="swarms-title">Swarms</h2>
        <p class="count">
          {sum((one) => one.hub_bytes)} from hubs, {sum((one) => one.received_bytes)} from other nodes, {sum((one) => one.sent_bytes)} to them
        </p>
      </div>
      <ul class="swarms">
        {shown.map(({ swarm, title }) => <SwarmPanel key={`${swarm.hub} ${swarm.image}`} swarm={swarm} title={title} />)}
      </ul>
    </section>
  );
}
