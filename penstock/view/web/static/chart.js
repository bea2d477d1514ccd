// The metrics of a run by step, each with its own chart. A click opens the step under the cursor.
/* global uPlot */

const COLOURS = ["#3b82f6", "#f59e0b", "#10b981", "#ec4899", "#8b5cf6", "#ef4444", "#14b8a6", "#a3a3a3"];
// Metrics of every run: they come last, and only if not zero.
const LAST = ["wait_ms", "substituted"];
const HEIGHT = 190;

// A stroke at each unusual step: a value that is not finite has no point on any line.
function strike(plot, steps) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.fillStyle = "#ef4444";
  for (const step of steps) {
    const x = plot.valToPos(step, "x", true);
    if (x >= bbox.left && x <= bbox.left + bbox.width) ctx.fillRect(x - 1, bbox.top + bbox.height - 14, 2, 14);
  }
  ctx.restore();
}

function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return size && (size < 1e-3 || size >= 1e6) ? value.toExponential(2).replace(/\.?0+e/, "e") : String(Number(value.toPrecision(5)));
}

// Indexes of values without a neighbour, which no line shows.
function lonely(values) {
  const none = (i) => values[i] === null || values[i] === undefined;
  return values.flatMap((value, i) => (!none(i) && none(i - 1) && none(i + 1) ? [i] : []));
}

export async function chart(place, go) {
  if (!place) return;
  const answer = await fetch(place.dataset.from);
  if (!answer.ok) return;
  const { chart: columns, struck } = await answer.json();
  const { step, ...notes } = columns;
  if (!step.length) return;
  const names = Object.keys(notes)
    .filter((name) => !LAST.includes(name) || notes[name].some((value) => value))
    .sort((a, b) => LAST.indexOf(a) - LAST.indexOf(b));
  const text = getComputedStyle(document.body).color;
  const line = { stroke: getComputedStyle(document.querySelector("header")).borderBottomColor, width: 1 };
  const axis = { stroke: text, grid: line, ticks: line };
  const whole = Array.from({ length: 16 }, (_, i) => [1, 2, 5].map((one) => one * 10 ** i)).flat();
  // A struck step may lie outside of the points, such as the last one of a run that diverged.
  const ends = [Math.min(step[0], ...struck), Math.max(step.at(-1), ...struck)];
  const plots = [];
  let zooming = false;

  // All charts show the same steps.
  function zoom(from) {
    if (zooming) return;
    zooming = true;
    const { min, max } = from.scales.x;
    for (const other of plots) if (other !== from) other.setScale("x", { min, max });
    zooming = false;
  }

  for (const [i, name] of names.entries()) {
    const single = lonely(notes[name]);
    const panel = document.createElement("figure");
    panel.className = "panel";
    panel.dataset.metric = name;
    place.append(panel);
    // The ends of the axis, for screen readers.
    const label = (plot) => panel.setAttribute("aria-label", `${name}: ${short(plot.scales.y.min)} to ${short(plot.scales.y.max)}`);
    const drawn = new uPlot({
      title: name,
      width: panel.clientWidth,
      height: HEIGHT,
      hooks: { draw: [(plot) => strike(plot, struck)], setScale: [(plot, key) => (key === "x" ? zoom(plot) : label(plot))] },
      cursor: { sync: { key: "steps" } },
      scales: { x: { time: false, ...(ends[0] < ends[1] ? { range: (_, min, max) => (min === null ? ends : [min, max]) } : {}) } },
      axes: [{ ...axis, incrs: whole, size: 34 }, { ...axis, size: 64, values: (_, ticks) => ticks.map(short) }],
      series: [
        { label: "step" },
        {
          label: name, stroke: COLOURS[i % COLOURS.length], width: 1.5, spanGaps: false,
          points: step.length < 60 ? { show: true } : { show: false, filter: () => single, size: 4 }, value: (_, value) => short(value),
        },
      ],
    }, [step, notes[name]], panel);
    plots.push(drawn);
    let downAt = null;
    drawn.over.addEventListener("mousedown", (event) => { downAt = event.clientX; });
    drawn.over.addEventListener("mouseup", (event) => {
      // A drag zooms; a click opens.
      if (downAt !== null && Math.abs(event.clientX - downAt) < 4 && drawn.cursor.idx !== null) go(`${place.dataset.step}${step[drawn.cursor.idx]}`);
    });
    addEventListener("resize", () => drawn.setSize({ width: panel.clientWidth, height: HEIGHT }));
  }
}
