/** The page of a hub: its catalogue, to be looked at. Machines run on nodes. */

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ago, bytes, shortName, titleOf } from "./format";
import { Dialog } from "./parts/Dialog";
import { Header } from "./parts/Header";
import { Icon } from "./parts/Icon";
import { Notices } from "./parts/Notices";
import { complain, tell } from "./parts/notices";
import { Catalogue, type Entry } from "./views/Catalogue";

interface HubImage {
  id: string;
  names: string[];
  owner: string;
  public: boolean;
  pushed_unix_s: number;
  raw_bytes: number;
  stored_bytes: number;
  thumbnail: boolean;
  damaged?: boolean;
}

/** Where a node's page is unless it was told otherwise. */
const NODE_PAGE = "http://127.0.0.1:7070/";

function entryOf(image: HubImage): Entry {
  return {
    id: image.id,
    title: titleOf(image),
    names: image.names,
    labels: [],
    thumbnail: image.thumbnail ? `/v1/images/${image.id}/thumbnail` : null,
    facts: [
      ...(image.damaged ? ["damaged: push it again"] : []),
      bytes(image.stored_bytes), image.owner, ago(image.pushed_unix_s),
    ],
    ...(image.public ? {} : { badge: "private" }),
  };
}

/** What the hub tells an image's owner of its swarm. docs/openapi-hub.json has all of it. */
interface Overview {
  own: Member[];
  others: Member[];
  count: number;
  hub_bytes: number;
  counted_s: number;
}

interface Member {
  key: string;
  addresses: string[];
}

/** How often it is asked for while it is shown. */
const LOOK_EVERY_MS = 3000;
/** Most nodes that are shown. */
const NODES_SHOWN = 50;

/** An image's swarm, looked at again and again; `null` to all but the image's owner. */
function useSwarm(id: string): Overview | null {
  const [swarm, setSwarm] = useState<Overview | null>(null);
  useEffect(() => {
    let ended = false;
    let timer = 0;
    const look = async (): Promise<void> => {
      const response = await fetch(`/v1/images/${id}/swarm`);
      // others are refused, and will be
      const seen = response.ok ? ((await response.json()) as Overview) : null;
      if (ended) return;
      setSwarm(seen);
      if (seen) timer = window.setTimeout(() => void look().catch(complain), LOOK_EVERY_MS);
    };
    look().catch(complain);
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [id]);
  return swarm;
}

function Swarm({ id }: { id: string }) {
  const swarm = useSwarm(id);
  if (!swarm) return null;
  const { own, others, count, hub_bytes: given, counted_s: counted } = swarm;
  const named = (members: Member[], whose: string) => members.map((member) => ({ ...member, whose }));
  const shown = [...named(own, "yours"), ...named(others, "somebody else’s")].slice(0, NODES_SHOWN);
  return (
    <>
      <h3>Nodes that bring it to each other</h3>
      <p>
        {count === 0 ? "No node does now." : `Now: ${count}.`} The hub gave {bytes(given)} of its pieces since it was
        started {ago(Date.now() / 1000 - counted)}.
      </p>
      {shown.length > 0 && (
        <div class="scrolls" tabIndex={0} role="group" aria-label="Nodes that bring it to each other">
          <table>
            <thead><tr><th scope="col">Node</th><th scope="col">Whose</th><th scope="col">Address</th></tr></thead>
            <tbody>
              {shown.map((node) => (
                <tr key={node.key}>
                  <th scope="row"><code>{node.key.slice(0, 12)}</code></th><td>{node.whose}</td><td>{node.addresses.join(", ")}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {count > shown.length && <p class="hint">And {count - shown.length} more.</p>}
    </>
  );
}

function Chosen({ entry, onClose }: { entry: Entry; onClose: () => void }) {
  const name = shortName(entry.names[0] ?? entry.id);
  const address = `${location.origin}/${name}`;
  const command = `floe run ${address}`;
  const copy = (): void => {
    navigator.clipboard.writeText(command).then(() => tell("Copied."), complain);
  };
  return (
    <Dialog title={entry.title} onClose={onClose}>
      <p>On any host with a node, from a shell:</p>
      <div class="copy">
        <pre><code>{command}</code></pre>
        <button onClick={copy} data-first>Copy</button>
      </div>
      <p>Or with a click, if this computer runs <code>floe up</code>:</p>
      <p>
        <a class="button primary" href={`${NODE_PAGE}#/run/${encodeURIComponent(address)}`}>
          <Icon name="play" /> Start on this computer
        </a>
      </p>
      <Swarm id={entry.id} />
    </Dialog>
  );
}

function App() {
  const [entries, setEntries] = useState<Entry[] | null>(null);
  const [search, setSearch] = useState("");
  const [chosen, setChosen] = useState<Entry | null>(null);
  const [denied, setDenied] = useState(false);
  useEffect(() => {
    const load = async (): Promise<void> => {
      const response = await fetch("/v1/images");
      if (response.status === 401) return setDenied(true);
      if (!response.ok) throw new Error(await response.text());
      const list = (await response.json()) as { images: HubImage[] };
      setEntries(list.images.map(entryOf));
    };
    load().catch(complain);
  }, []);
  if (denied) {
    return (
      <main class="locked">
        <img src="/favicon.svg" width={64} height={64} alt="" />
        <h1>This hub shows its images only with a token</h1>
        <p>The hub of <code>floe up</code> on this computer is opened from a shell:</p>
        <pre><code>floe open --hub</code></pre>
        <p>For another hub, keep your token, then run its images:</p>
        <pre><code>floe login {location.origin}</code></pre>
      </main>
    );
  }
  return (
    <>
      <Header title="floe hub" what="Search images" search={search} onSearch={setSearch} />
      <main class="page">
        <Catalogue
          entries={entries}
          search={search}
          verb="How to start"
          onOpen={setChosen}
          onTitle={setChosen}
          empty={<><h3>No public images yet</h3><p>floe push NAME {location.origin} --public</p></>}
        />
      </main>
      {chosen && <Chosen entry={chosen} onClose={() => setChosen(null)} />}
      <Notices />
    </>
  );
}

const root = document.getElementById("app");
if (root) render(<App />, root);
