import { Dialog } from "../parts/Dialog";

const KEYS: [string, string][] = [
  ["/", "search"],
  ["Arrow keys", "from image to image"],
  ["Enter", "start the image, or show the machine's screen"],
  ["a", "add an image"],
  ["?", "this list"],
];

const SCREEN_KEYS: [string, string][] = [
  ["Enter", "on the screen: type into the guest"],
  ["Esc", "leave the screen for its buttons; once more: back to the images"],
  ["Shift + Esc", "send Esc to the guest"],
  ["f", "full screen"],
  ["c", "capture"],
  ["n", "fork: clones of this moment"],
];

function List({ keys }: { keys: [string, string][] }) {
  return (
    <dl class="keys">
      {keys.map(([key, what]) => (
        <div key={key}>
          <dt><kbd>{key}</kbd></dt>
          <dd>{what}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keys" onClose={onClose}>
      <h3>Catalogue</h3>
      <List keys={KEYS} />
      <h3>Screen</h3>
      <List keys={SCREEN_KEYS} />
      <p class="hint">
        With “Esc to guest” pressed it is the other way round: Esc goes to the guest, Shift + Esc leaves the screen.
        While the guest has the keyboard, it gets all other keys.
      </p>
      <p class="hint"><a href="/licences.txt">Licences</a> of the libraries in this page.</p>
    </Dialog>
  );
}
