import { useState } from "preact/hooks";

/** Numbers between 0 and 1 that always are the same for the same text. */
function* dice(seed: string): Generator<number, never> {
  let state = 2166136261;
  for (const character of seed) state = Math.imul(state ^ character.charCodeAt(0), 16777619);
  for (;;) {
    state = Math.imul(state ^ (state >>> 15), 2246822519);
    state = Math.imul(state ^ (state >>> 13), 3266489917);
    state = (state ^ (state >>> 16)) | 0;
    yield (state >>> 0) / 2 ** 32;
  }
}

/** Ice on water, drawn from the image's id: images without a screen can still be told apart. */
function Drawn({ seed }: { seed: string }) {
  const random = dice(seed);
  const next = (from: number, to: number): number => from + random.next().value * (to - from);
  const hue = Math.round(next(185, 235));
  const floes = Array.from({ length: 5 }, (_, index) => {
    const [x, y, size] = [next(0, 320), 70 + index * 27, next(35, 80)];
    const corners = Array.from({ length: 7 }, (_, corner) => {
      const angle = (corner / 7) * 2 * Math.PI;
      const radius = size * next(0.65, 1);
      return `${(x + Math.cos(angle) * radius).toFixed(0)},${(y + Math.sin(angle) * radius * 0.32).toFixed(0)}`;
    });
    return <polygon points={corners.join(" ")} fill={`hsl(${hue} 45% ${82 + index * 3}%)`} opacity={0.5 + index * 0.1} />;
  });
  return (
    <svg class="drawn" viewBox="0 0 320 200" preserveAspectRatio="xMidYMid slice" aria-hidden="true">
      <rect width="320" height="200" fill={`hsl(${hue} 48% 38%)`} />
      <rect width="320" height="62" fill={`hsl(${hue} 40% 54%)`} />
      {floes}
    </svg>
  );
}

/** A screen, or what stands for one. The text beside it names it, so the picture itself is silent unless told. */
export function Thumb({ src, seed, alt = "" }: { src: string | null; seed: string; alt?: string }) {
  const [broken, setBroken] = useState<string | null>(null);
  if (!src || broken === src) return <Drawn seed={seed} />;
  return (
    <img
      class="shot"
      src={src}
      alt={alt}
      width={640}
      height={400}
      loading="lazy"
      decoding="async"
      onError={() => setBroken(src)}
    />
  );
}
