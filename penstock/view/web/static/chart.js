// The notes of a run by step. A click opens the step under the cursor.
import uPlot from "./uplot.js";

const COLOURS = ["#3b82f6", "#f59e0b", "#10b981", "#ec4899", "#8b5cf6", "#ef4444", "#14b8a6", "#a3a3a3"];
const HIDDEN = new Set(["wait_ms", "substituted"]);

// A stroke at each unusual step: one without a finite value has no point on any line.
function strike(plot, spikes) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.fillStyle = "#ef4444";
  for (const { step } of spikes) {
    const x = plot.valToPos(step, "x", true);
    if (x >= bbox.left && x <= bbox.left + bbox.width) ctx.fillRect(x - 1, bbox.top + bbox.height - 14, 2, 14);
  }
  ctx.restore();
}

export async function chart(place, go) {
  if (!place) return;
  const answer = await fetch(place.dataset.from);
  if (!answer.ok) return;
  const { chart: columns, spikes } = await answer.json();
  const { step, ...notes } = columns;
  if (!step.length) return;
  const names = Object.keys(notes), text = getComputedStyle(document.body).color;
  const line = { stroke: getComputedStyle(document.querySelector("header")).borderBottomColor, width: 1 };
  const axis = { stroke: text, grid: line, ticks: line };
  const whole = Array.from({ length: 16 }, (_, i) => [1, 2, 5].map((one) => one * 10 ** i)).flat();
  const shownFirst = names.find((name) => !HIDDEN.has(name)) ?? names[0];
  const drawn = new uPlot({
    width: place.clientWidth,
    height: 280,
    hooks: { draw: [(plot) => strike(plot, spikes)] },
    scales: { x: { time: false }, ...Object.fromEntries(names.map((name) => [name, {}])) },
    axes: [{ ...axis, incrs: whole }, { ...axis, scale: shownFirst, label: shownFirst, labelSize: 20, size: 60 }],
    series: [
      { label: "step" },
      ...names.map((name, i) => ({
        label: name, scale: name, stroke: COLOURS[i % COLOURS.length], width: 1.5, spanGaps: false,
        points: { show: step.length < 60 }, show: !HIDDEN.has(name), value: (_, value) => (value === null ? "–" : Number(value.toPrecision(5))),
      })),
    ],
  }, [step, ...names.map((name) => notes[name])], place);
  let downAt = null;
  drawn.over.addEventListener("mousedown", (event) => { downAt = event.clientX; });
  drawn.over.addEventListener("mouseup", (event) => {
    // A drag zooms; a click opens.
    if (downAt !== null && Math.abs(event.clientX - downAt) < 4 && drawn.cursor.idx !== null) go(`${place.dataset.step}${step[drawn.cursor.idx]}`);
  });
  addEventListener("resize", () => drawn.setSize({ width: place.clientWidth, height: 280 }));
}
