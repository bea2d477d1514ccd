// Keys, the chart of a run, and the basket. Pages work without this file; the address is the state.
import { basket } from "./basket.js";
import { chart } from "./chart.js";

const body = document.body, at = body.dataset;
const cards = () => [...document.querySelectorAll("[data-walk] a")];
const number = (name, fallback = NaN) => (at[name] === undefined ? fallback : Number(at[name]));

export function say(text) {
  const status = document.querySelector("#status");
  status.textContent = text;
  status.hidden = false;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { status.hidden = true; }, 6000);
}

function go(address) {
  if (address) location.assign(address);
}

function part(rank = number("rank"), world = number("world")) {
  return Number.isNaN(rank) ? location.search : `?world=${world}&rank=${rank}`;
}

function toStep(by) {
  const step = number("step") + by;
  if (at.run && step >= 0) go(`${at.run}/${step}${part()}`);
}

function toRank(by) {
  const rank = number("rank") + by, world = number("world");
  if (at.run && rank >= 0 && rank < world) go(`${at.run}/${at.step}${part(rank)}`);
}

function walk(by) {
  const all = cards();
  if (!all.length) return by === 1 ? go(at.after) : by === -1 ? go(at.before) : undefined;
  const now = all.indexOf(document.activeElement);
  const next = now < 0 ? 0 : Math.min(all.length - 1, Math.max(0, now + by));
  all[next].focus();
}

function across() {
  const all = cards();
  const below = all.findIndex((one) => one.offsetTop > all[0].offsetTop);
  return below < 0 ? all.length : below;
}

// Shows one stage of all fields at a time, then all stages again.
function nextStage() {
  const there = new Set([...document.querySelectorAll(".stage[data-stage]")].map((one) => one.dataset.stage));
  const stages = [...["trained", "transformed", "decoded", "stored", "raw"].filter((one) => there.has(one)), ""];
  const next = stages[(stages.indexOf(at.stage ?? "") + 1) % stages.length];
  at.stage = next;
  for (const one of document.querySelectorAll(".stage")) one.hidden = next !== "" && one.dataset.stage !== next;
  say(next || "all stages");
}

function nextFrame(by) {
  const frames = [...document.querySelectorAll(".stage:not([hidden]) .frame")];
  if (!frames.length) return;
  const now = frames.findIndex((one) => one.classList.contains("now"));
  const next = Math.min(frames.length - 1, Math.max(0, now + by));
  frames.forEach((one, i) => one.classList.toggle("now", i === next));
  frames[next].scrollIntoView({ block: "nearest" });
  say(`frame ${next} of ${frames.length}`);
}

async function copy() {
  const command = decodeURIComponent(at.command);
  try {
    await navigator.clipboard.writeText(command);
    say(`copied: ${command}`);
  } catch {
    say(command); // without permission to copy: show the command instead
  }
}

const KEYS = {
  g: askStep,
  "[": () => toStep(-1),
  "]": () => toStep(1),
  "{": () => toRank(-1),
  "}": () => toRank(1),
  ArrowRight: () => walk(1),
  ArrowLeft: () => walk(-1),
  ArrowDown: () => (cards().length ? walk(across()) : undefined),
  ArrowUp: () => (cards().length ? walk(-across()) : undefined),
  t: nextStage,
  ",": () => nextFrame(-1),
  ".": () => nextFrame(1),
  "/": () => document.querySelector("#filter")?.focus(),
  e: explain,
  y: () => at.command && copy(),
  u: () => go(at.back),
  b: () => basket.toggle(),
  x: () => basket.exclude(),
  "?": () => document.querySelector("#help").showModal(),
};

function askStep() {
  const form = document.querySelector("#open-step");
  if (form) return form.elements.step.focus();
  if (at.run) document.querySelector("#go").showModal();
}

function explain() {
  const there = document.querySelector("#explain");
  if (there) there.scrollIntoView();
  else if (document.activeElement?.dataset.key !== undefined) go(`${document.activeElement.href}#explain`);
}

const SCROLLS = new Set(["ArrowDown", "ArrowUp"]);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, dialog[open]")) return;
  const act = KEYS[event.key];
  if (!act || (SCROLLS.has(event.key) && !cards().length)) return;
  event.preventDefault();
  act();
});

for (const button of document.querySelectorAll("[data-press]")) button.addEventListener("click", () => KEYS[button.dataset.press]());
document.querySelector("#open-step")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const given = new FormData(event.target);
  const step = given.get("step").trim();
  go(`${at.up}r/${encodeURIComponent(given.get("run").trim())}${step ? `/${encodeURIComponent(step)}` : ""}`);
});
document.querySelector("#go form").addEventListener("submit", (event) => {
  const step = event.target.elements.step.value.trim();
  if (step) go(`${at.run}/${encodeURIComponent(step)}`);
});
basket.begin(say);
chart(document.querySelector("#chart"), go).then(() => {
  // Charts push down what the address names.
  if (location.hash === "#unusual") document.querySelector("#unusual")?.scrollIntoView();
});
at.keys = "ready";
