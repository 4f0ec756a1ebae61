/** What stands where there is nothing to show yet: why, and what a person can do. */

interface Props {
  readonly title: string;
  readonly text?: string;
  /** The words of the button. */
  readonly action: string;
  readonly onAct: () => void;
}

/** Shows why there is nothing, and the way on. */
export function Empty({ title, text, action, onAct }: Props): preact.JSX.Element {
  return (
    <section class="panel empty">
      <h2>{title}</h2>
      {text && <p class="muted">{text}</p>}
      <button class="primary" onClick={onAct}>
        {action}
      </button>
    </section>
  );
}
