/** Names and what they stand for, side by side. */

/** Shows facts as a person reads them. */
export function Facts({ facts }: { facts: readonly (readonly [string, string])[] }): preact.JSX.Element {
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name + value}>
          <dt>{name}</dt>
          <dd>
            <bdi>{value}</bdi>
          </dd>
        </div>
      ))}
    </dl>
  );
}
