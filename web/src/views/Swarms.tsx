import { useEffect, useState } from "preact/hooks";
import { api, type Image, type Machine, type Swarm, type SwarmPeer } from "../api";
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

/** Which way its pieces come, and why. */
function wayOf({ way, peers }: Swarm): string {
  const linked = peers.filter((peer) => peer.linked).length;
  if (way === "multicast") return "It is a fork. What its clones lack comes from a multicast group, and what they miss of that from its parent's host.";
  if (way === "parent") return "It is a fork. What its clones lack comes from its parent's host.";
  if (way === "swarm") return `Its pieces come from other nodes (linked: ${linked} of ${peers.length}); those that none of them has come from the hub.`;
  if (peers.length === 0) return "Its pieces come from the hub: no other node that has any is known.";
  return `Its pieces come from the hub: of the other nodes (${peers.length}) none is linked.`;
}

function factsOf(swarm: Swarm): string[] {
  const { machines, needed, seeding, seed_until: until, complete } = swarm;
  const given = until === undefined ? "given until floe swarm leave" : `given until ${until} others have had all of it`;
  return [
    ...machines,
    ...(seeding ? [given] : []),
    `have had all of it: ${complete}`,
    ...(needed > 0 ? [`waited for: ${needed} pieces`] : []),
  ];
}

function stateOf(peer: SwarmPeer): string {
  if (peer.dropped !== undefined) return `dropped: ${peer.dropped}`;
  return peer.linked ? "linked" : "known";
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
      {swarm.pieces > 0 && <Meter progress={here} />}
      <Givers swarm={swarm} title={title} />
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
