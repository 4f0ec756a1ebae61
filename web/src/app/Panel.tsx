/** A part of a view under its title. */

import type { ComponentChildren } from "preact";

interface Props {
  readonly id: string;
  readonly title: string;
  /** A further class. */
  readonly kind?: string;
  readonly children: ComponentChildren;
}

/** Shows the title above what is in the part. */
export function Panel({ id, title, kind = "", children }: Props): preact.JSX.Element {
  return (
    <section class={`panel ${kind}`} aria-labelledby={id}>
      <h2 id={id}>{title}</h2>
      {children}
    </section>
  );
}
