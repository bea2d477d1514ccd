// A version's page: histograms that choose a range, the search for a column, a drawer on narrow screens.
import { pickedAgain } from "./basket.js";

const column = (place) => decodeURIComponent(place.closest(".facet").dataset.column);
const quoted = (name) => `"${name.replaceAll('"', '""')}"`;
// [low, high] of each bin, as texts: a number would round whole numbers beyond 2^53.
function edgesOf(histogram) {
  const ends = histogram.dataset.edges.split(" ");
  return ends.slice(1).map((high, i) => [ends[i], high]);
}

// The bins from first to last as one SQL term; only the last bin of all contains its end.
function term(histogram, first, last) {
  const edges = edgesOf(histogram), name = quoted(column(histogram));
  const [low, high] = [edges[first][0], edges[last][1]];
  if (low === high) return `${name} = ${low}`;
  const less = last === edges.length - 1 || edges[last][0] === high ? "<=" : "<";
  return `${name} >= ${low} AND ${name} ${less} ${high}`;
}

// The click, or Enter, that follows opens the page of this range.
function choose(histogram, first, last) {
  const query = new URLSearchParams(histogram.dataset.rest);
  query.append("t", term(histogram, first, last));
  histogram.href = `?${query}`;
}

function show(histogram, first, last) {
  const brush = histogram.querySelector(".brush"), edges = edgesOf(histogram);
  brush.setAttribute("x", first - 0.5);
  brush.setAttribute("width", last - first + 1);
  histogram.parentElement.querySelector(".here").textContent = `${edges[first][0]} to ${edges[last][1]}`;
}

const binAt = (histogram, x) => {
  const box = histogram.getBoundingClientRect(), n = edgesOf(histogram).length;
  return Math.max(0, Math.min(n - 1, Math.floor(((x - box.left) / box.width) * n)));
};

let drag = null;
addEventListener("pointerdown", (event) => {
  const histogram = event.target.closest?.("[data-edges]");
  if (!histogram || event.button) return;
  drag = { histogram, from: binAt(histogram, event.clientX) };
  histogram.setPointerCapture(event.pointerId);
  show(histogram, drag.from, drag.from);
});
addEventListener("pointermove", (event) => {
  if (!drag) return;
  const to = binAt(drag.histogram, event.clientX);
  show(drag.histogram, Math.min(drag.from, to), Math.max(drag.from, to));
});
addEventListener("pointerup", (event) => {
  if (!drag) return;
  const { histogram, from } = drag, to = binAt(histogram, event.clientX);
  drag = null;
  choose(histogram, Math.min(from, to), Math.max(from, to));
});

// With the keyboard: arrows move, Shift and arrows widen, Enter opens.
addEventListener("keydown", (event) => {
  const histogram = event.target.closest?.("[data-edges]");
  if (!histogram || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  const most = edgesOf(histogram).length - 1;
  const [first, last] = (histogram.dataset.bins ?? "0,0").split(",").map(Number);
  const by = event.key === "ArrowRight" ? 1 : -1;
  const end = Math.max(0, Math.min(most, last + by)), begin = event.shiftKey ? Math.min(first, end) : end;
  histogram.dataset.bins = `${begin},${end}`;
  show(histogram, begin, end);
  choose(histogram, begin, end);
}, true);

addEventListener("input", (event) => {
  if (event.target.id !== "seek") return;
  const words = event.target.value.toLowerCase();
  for (const facet of document.querySelectorAll(".facet")) facet.hidden = !column(facet.firstElementChild).toLowerCase().includes(words);
});

addEventListener("change", (event) => {
  if (["sort", "facet", "cols"].includes(event.target.name)) document.querySelector("#filter-form").requestSubmit();
});

// The size of thumbnails, in this tab.
addEventListener("input", (event) => {
  if (event.target.id === "thumb-size") document.documentElement.style.setProperty("--thumb", `${event.target.value}px`);
});

const narrow = matchMedia("(max-width: 640px)");
const fold = () => document.querySelector(".drawer")?.toggleAttribute("open", !narrow.matches);
narrow.addEventListener("change", fold);
fold();
document.addEventListener("htmx:after:swap", () => {
  const json = document.querySelector("a.json");
  json.href = `${location.pathname.split("/").at(-1)}.json${location.search}`;
  // The header stays: its boxes show the filter of the new page, but for what a person types now.
  const asked = new URLSearchParams(location.search);
  for (const box of document.querySelectorAll("#filter, #words")) if (box !== document.activeElement) box.value = asked.get(box.name) ?? "";
  pickedAgain();
});
