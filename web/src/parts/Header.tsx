import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Icon } from "./Icon";

/** `/` goes to the search from anywhere but a field. */
function useSlash(field: { current: HTMLInputElement | null }): void {
  useEffect(() => {
    const key = (event: KeyboardEvent): void => {
      const typing = event.target instanceof HTMLElement && event.target.closest("input, textarea, dialog, .screen");
      if (event.key !== "/" || typing || document.querySelector("dialog[open]")) return;
      event.preventDefault();
      field.current?.focus();
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
}

export function Header(props: {
  title: string;
  /** What the search finds, in words. */
  what: string;
  search: string;
  onSearch: (text: string) => void;
  children?: ComponentChildren;
}) {
  const field = useRef<HTMLInputElement>(null);
  useSlash(field);
  return (
    <header class="top">
      <h1 class="brand">
        <img src="/favicon.svg" width={28} height={28} alt="" />
        {props.title}
      </h1>
      <search class="search">
        <label>
          <Icon name="search" />
          <span class="unseen">{props.what}</span>
          <input
            ref={field}
            type="search"
            placeholder={props.what}
            value={props.search}
            onInput={(event) => props.onSearch(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key === "Escape") event.currentTarget.blur();
            }}
          />
          <kbd aria-hidden="true">/</kbd>
        </label>
      </search>
      <nav class="top-tools" aria-label="Tools">{props.children}</nav>
    </header>
  );
}
