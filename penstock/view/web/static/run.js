// A training's page: each metric over the steps, every step faint and a running median on top, and a lane of events. A
// click opens the step under the pointer, a drag zooms. While the page is open it asks for new steps.
import { Axis, Plot, number } from "./lines.js";
import { answer, go, say } from "./view.js";

const POLL_MS = 5000;
// Values beyond this share of all do not set the scale: a first wait of seconds would flatten the rest.
const IN_SCALE = 0.99;
const place = document.querySelector("#chart");

const rows = (address) => answer(address).then((response) => response.json());
// This run's record, and those of the runs that are laid over it.
const addresses = [place.dataset.from, ...place.dataset.over.split(" ").filter(Boolean)];
const [record, ...others] = await Promise.all(addresses.map(rows)).catch((error) => {
  say(`The metrics did not load: ${error.message}`);
  throw error;
});
const { struck, not_finite: bad, substituted } = record;
const { step, ...metrics } = record.chart;
// Of a long run only some steps are drawn.
const isThinned = step.length < record.n_steps;
// A struck step may lie outside of the points, such as the last one of a run that diverged.
const first = Math.min(...step.slice(0, 1), ...struck);
const last = () => Math.max(first + 1, ...struck, ...[record, ...others].flatMap(({ chart }) => chart.step.slice(-1)));
const axis = new Axis(first, last(), 2);
const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];

// Steps without a value that is merely missing, unless most are: a metric may be noted at some steps only.
function gaps(values) {
  const unusual = new Set(struck), without = step.filter((at, i) => values[i] === null && !unusual.has(at));
  return without.length * 2 < values.length ? without : [];
}

// The steps with a value, the values, and the median of the values around each one.
function known(steps, values = []) {
  const x = steps.filter((_, i) => (values[i] ?? null) !== null), low = values.filter((value) => value !== null);
  const half = Math.max(2, Math.round(low.length / 120));
  const smooth = low.map((_, i) => median(low.slice(Math.max(0, i - half), i + half + 1)));
  return { x, low, smooth };
}

function scaleOf(values) {
  const sorted = values.toSorted((a, b) => a - b), end = sorted.length - 1;
  if (end < 0) return [0, 1];
  const low = sorted[Math.floor((1 - IN_SCALE) * end)], high = sorted[Math.ceil(IN_SCALE * end)];
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [low >= 0 ? Math.max(low - room, 0) : low - room, high + room];
}

// The index of the number that is nearest, of ascending ones.
function nearest(numbers, at) {
  const after = numbers.findIndex((one) => one >= at), before = after - 1;
  if (after < 0) return numbers.length - 1;
  return before >= 0 && at - numbers[before] < numbers[after] - at ? before : after;
}

// The drawn step that a click means, or the one under the pointer if none is drawn near it.
function chosen(at) {
  const drawn = step[nearest(step, at)];
  return isThinned && Math.abs(drawn - at) > (axis.to - axis.from) / 400 ? Math.round(at) : drawn;
}

const plot = (canvas, options) => new Plot(canvas, axis, {
  whole: true,
  hover: true,
  pick: (at) => go(`${place.dataset.step}${chosen(at)}`),
  ...options,
});
const ticks = (steps, top, tall, look) => steps.map((at) => ({ from: at, to: at, top, tall, ...look }));

// Draws a metric's figure, and returns what draws it again with new steps.
function metric(figure) {
  const name = decodeURIComponent(figure.dataset.metric), canvas = figure.querySelector("canvas"), drawn = plot(canvas, {});
  const here = figure.querySelector(".here");
  let line = null;
  axis.moved.push((at) => {
    const i = nearest(line.x, at), [drawn, own] = [line.x[i] ?? at, at].map((one) => one.toLocaleString("en-US"));
    const name = isThinned && own !== drawn ? `step ${own}, nearest drawn ${drawn}` : `step ${drawn}`;
    here.textContent = i < 0 ? "" : `${name}: ${number(line.low[i])}, median ${number(line.smooth[i])}`;
    Object.assign(canvas, { ariaValueMin: axis.first, ariaValueMax: axis.last, ariaValueNow: at, ariaValueText: here.textContent });
  });
  return () => {
    line = known(step, metrics[name]);
    const lines = [line, ...others.map(({ chart }) => known(chart.step, chart[name]))];
    const scale = scaleOf(lines.flatMap(({ low }) => low));
    drawn.scale = scale;
    drawn.series = lines.flatMap(({ x, low, smooth }, colour) => {
      const usual = { x, colour, joined: true };
      return [{ ...usual, low, high: low, alpha: 0.4, width: 1, dots: true }, { ...usual, low: smooth, high: smooth, width: 2 }];
    });
    const feet = { quiet: gaps(metrics[name]), odd: struck, bad }; // a later one covers the others
    drawn.ticks = Object.entries(feet).flatMap(([tone, at]) => ticks(at, 0.92, 0.08, { tone }));
    figure.setAttribute("aria-label", `${name}: ${scale.map(number).join(" to ")}`);
  };
}

// Restarts, steps with substitutes, and checkpoints, each in a row of its own.
function events(canvas) {
  const numbers = (name) => canvas.dataset[name].split(" ").filter(Boolean).map(Number);
  const drawn = plot(canvas, {}), restarts = numbers("restarts"), checkpoints = numbers("checkpoints");
  return () => {
    drawn.ticks = [
      ...ticks(restarts, 0.06, 0.26, { tone: "bad" }),
      ...ticks(substituted, 0.38, 0.26, { colour: 4 }),
      ...ticks(checkpoints, 0.7, 0.26, { colour: 2 }),
    ];
  };
}

const updates = step.length ? [...place.querySelectorAll("[data-metric]")].map(metric) : [];
updates.push(events(document.querySelector("#events")));

function update() {
  for (const draw of updates) draw();
  axis.draw(true);
}

async function follow() {
  if (document.hidden) return;
  const since = record.last_step, separator = place.dataset.from.includes("?") ? "&" : "?";
  const news = await rows(`${place.dataset.from}${separator}since=${since}`).catch(() => null);
  if (!news || news.last_step <= since) return;
  record.last_step = news.last_step;
  step.push(...news.chart.step);
  for (const steps of [struck, bad]) steps.push(...news.struck); // news has those that are not finite
  substituted.push(...news.chart.step.filter((_, i) => news.chart.substituted[i]));
  for (const name of Object.keys(metrics)) metrics[name].push(...(news.chart[name] ?? news.chart.step.map(() => null)));
  update();
  axis.grow(last());
  document.querySelector(".tile b").textContent = news.last_step.toLocaleString("en-US");
}

// With a chart focused, arrows, Home and End move the cursor from step to step, page keys to the next one that is drawn,
// and Enter opens the step.
const before = (at) => step.findLast((one) => one < at), after = (at) => step.find((one) => one > at);
const MOVES = {
  ArrowLeft: (at) => (isThinned ? at - 1 : before(at)), ArrowRight: (at) => (isThinned ? at + 1 : after(at)),
  PageUp: before, PageDown: after, Home: () => step[0], End: () => step.at(-1),
};
place.addEventListener("keydown", (event) => {
  const move = MOVES[event.key];
  if (!event.target.matches("[role=slider]") || !(move || event.key === "Enter")) return;
  event.preventDefault();
  event.stopPropagation();
  if (!move) return go(`${place.dataset.step}${isThinned ? axis.at : step[nearest(step, axis.at)]}`);
  axis.seek(move(axis.at) ?? axis.at);
  axis.zoom(1); // a range that lacks the cursor moves
});

const ruler = document.querySelector("#ruler");
plot(ruler, { ruler: (at) => at.toLocaleString("en-US") });
axis.ranged.push(() => ruler.setAttribute("aria-label", `steps ${Math.round(axis.from)} to ${Math.round(axis.to)}`));
document.querySelector("#zoom-all").addEventListener("click", () => axis.whole());
update();
axis.whole();
axis.seek(axis.last);
if (step.length) setInterval(follow, POLL_MS);
