/** Numbers of either sign as small bars. */

const MOST_BARS = 64;

type Props = Readonly<{ heights: readonly number[]; ends?: readonly [string, string] }>;

/** Shows a bar for each number, or for the largest of several; `ends` are written below both ends. */
export function Spark({ heights, ends }: Props): preact.JSX.Element {
  const count = Math.min(MOST_BARS, heights.length);
  const bars = Array.from({ length: count }, (_, bar) =>
    heights
      .slice(Math.floor((bar * heights.length) / count), Math.floor(((bar + 1) * heights.length) / count))
      .reduce((most, height) => (Math.abs(height) > Math.abs(most) ? height : most), 0),
  );
  const [top, bottom] = [Math.max(0, ...bars), Math.min(0, ...bars)];
  const unit = 1 / (top - bottom || 1);
  return (
    <div class="spark">
      <svg viewBox={`0 0 ${count} 1`} preserveAspectRatio="none" aria-hidden="true">
        {bars.map((height, bar) => (
          <rect
            key={bar}
            x={bar}
            y={(top - Math.max(height, 0)) * unit}
            width={0.88}
            height={Math.abs(height) * unit}
          />
        ))}
      </svg>
      {ends && (
        <p class="ends muted small">
          <span>{ends[0]}</span>
          <span>{ends[1]}</span>
        </p>
      )}
    </div>
  );
}
