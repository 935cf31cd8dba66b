import { useEffect, useState } from "preact/hooks";
import { api, isAwake, Refusal, type Face, type Machine, type Shares, type Stream } from "./api";

const LOOK_EVERY_MS = 1000;
/** While the machine stands still, its estimate is looked at more often. */
const LOOK_EVERY_BUFFERING_MS = 400;

/** The machine, its stream and its shares of the cores, looked at again and again. A node that does not tell of the last two is asked once. */
export function useLook(name: string): { machine: Machine | null; stream: Stream | null; shares: Shares | null; gone: boolean } {
  const [machine, setMachine] = useState<Machine | null>(null);
  const [stream, setStream] = useState<Stream | null>(null);
  const [shares, setShares] = useState<Shares | null>(null);
  const [gone, setGone] = useState(false);
  useEffect(() => {
    let ended = false;
    let streams = true;
    let cores = true;
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
        if (cores && isAwake(seen.status)) {
          // an older node does not know the question
          const shared = await api.shares(name).catch(() => false as const);
          if (ended) return;
          cores = shared !== false;
          setShares(shared || null);
        } else setShares(null);
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
  return { machine, stream, shares, gone };
}

/**
 * Where the guest shows itself, as the node sees it, asked for as long as `follow` is set: until the user has chosen, or has typed
 * something. `null` until the guest shows anything at all.
 */
export function useFace(name: string, follow: boolean): Face | null {
  const [face, setFace] = useState<Face | null>(null);
  useEffect(() => {
    if (!follow) return;
    let ended = false;
    let timer = 0;
    const look = async (): Promise<void> => {
      const seen = await api.face(name).catch(() => null);
      if (ended) return;
      if (seen) setFace(seen);
      timer = window.setTimeout(() => void look(), LOOK_EVERY_MS);
    };
    void look();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [name, follow]);
  return face;
}
