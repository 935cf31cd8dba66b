const PATHS = {
  play: "M8 5v14l11-7z",
  stop: "M7 7h10v10H7z",
  restart: "M12 5a7 7 0 1 0 6.7 9h-2.1A5 5 0 1 1 12 7c1.3 0 2.5.5 3.4 1.4L13 11h6V5l-2.1 2.1A7 7 0 0 0 12 5z",
  camera: "M9 5 7.5 7H5a1 1 0 0 0-1 1v10a1 1 0 0 0 1 1h14a1 1 0 0 0 1-1V8a1 1 0 0 0-1-1h-2.5L15 5zm3 4a4 4 0 1 1 0 8 4 4 0 0 1 0-8z",
  fork: "M7 4a2 2 0 0 1 1 3.700V9l4 2.500L16 9V7.700a2 2 0 1 1 2 0V10l-5 3.200v3.100a2 2 0 1 1-2 0v-3.100L6 10V7.700A2 2 0 0 1 7 4z",
  back: "M15 5 8 12l7 7 1.5-1.5L11 12l5.500-5.500z",
  full: "M5 5h6v2H7v4H5zm8 0h6v6h-2V7h-4zM5 13h2v4h4v2H5zm12 0h2v6h-6v-2h4z",
  keys: "M4 7h16a1 1 0 0 1 1 1v8a1 1 0 0 1-1 1H4a1 1 0 0 1-1-1V8a1 1 0 0 1 1-1zm2 3v1.500h1.500V10zm3 0v1.500h1.500V10zm3 0v1.500h1.500V10zm3 0v1.500h1.500V10zm-7 3v1.500h8V13z",
  plus: "M11 5h2v6h6v2h-6v6h-2v-6H5v-2h6z",
  search: "M10.500 4a6.500 6.500 0 1 1-4.900 10.800A6.500 6.500 0 0 1 10.500 4zm0 2a4.500 4.500 0 1 0 0 9 4.500 4.500 0 0 0 0-9zm4.600 7.700 5 5-1.400 1.400-5-5z",
  help: "M12 4a8 8 0 1 1 0 16 8 8 0 0 1 0-16zm0 2a6 6 0 1 0 0 12 6 6 0 0 0 0-12zm-1 9h2v2h-2zm1-8a3 3 0 0 1 1.200 5.700c-.1.100-.2.200-.2.400V14h-2v-.900c0-.900.500-1.700 1.400-2.100A1 1 0 1 0 11 10H9a3 3 0 0 1 3-3z",
  trash: "M9 4h6l1 2h4v2H4V6h4zM6 9h12l-1 11H7zm3 2 .500 7h1.500l-.300-7zm4.300 0L13 18h1.500l.500-7z",
  close: "m6.400 5 5.600 5.600L17.600 5 19 6.400 13.400 12l5.600 5.600-1.400 1.400-5.600-5.600L6.400 19 5 17.600l5.600-5.600L5 6.400z",
  pause: "M7 5h4v14H7zm6 0h4v14h-4z",
  info: "M12 4a8 8 0 1 1 0 16 8 8 0 0 1 0-16zm0 2a6 6 0 1 0 0 12 6 6 0 0 0 0-12zm-1 1.500h2v2h-2zm0 3.500h2v5.500h-2z",
  fit: "M4 5h16v14H4zm2 2v10h12V7zm2 4 3 2.500L8 16v-1.800l1.300-.7L8 12.800zm4 3.500h4V16h-4z",
  cloud: "M7 18a4 4 0 0 1-.500-7.970A6 6 0 0 1 18 9.500 4.300 4.300 0 0 1 17.500 18z",
  link: "M8 7h3v2H8a3 3 0 0 0 0 6h3v2H8A5 5 0 0 1 8 7zm5 0h3a5 5 0 0 1 0 10h-3v-2h3a3 3 0 0 0 0-6h-3zm-4 4h6v2H9z",
} as const;

export type IconName = keyof typeof PATHS;

/** A picture beside a text that says the same. */
export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} fill="currentColor" />
    </svg>
  );
}
