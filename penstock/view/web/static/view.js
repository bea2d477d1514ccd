// Keys and the basket. Pages work without this file; the address is the state.
import { basket, focused } from "./basket.js";

const body = document.body, at = body.dataset;
const cards = () => [...document.querySelectorAll("[data-walk] a")];
// A page names the key of a link: its address is then the server's.
const follow = (key) => document.querySelector(`[data-on="${key}"]`)?.click();

// stays: until another text comes.
export function say(text, stays = false) {
  const status = document.querySelector("#status");
  status.textContent = text;
  status.hidden = false;
  clearTimeout(say.timer);
  if (!stays) say.timer = setTimeout(() => { status.hidden = true; }, 6000);
}

export async function answer(url, options) {
  const response = await fetch(url, options).catch(() => { throw new Error("The viewer does not answer. Is it still running?"); });
  if (!response.ok) throw new Error(await response.text());
  return response;
}

export function go(address) {
  if (address) location.assign(address);
}

function walk(by) {
  const all = cards();
  if (!all.length) return Math.abs(by) === 1 ? follow(by > 0 ? "→" : "←") : undefined;
  const now = all.indexOf(focused());
  const next = now < 0 ? 0 : Math.min(all.length - 1, Math.max(0, now + by));
  all[next].focus();
}

function across() {
  const all = cards(), top = (one) => one.getBoundingClientRect().top;
  const below = all.findIndex((one) => top(one) > top(all[0]));
  return below < 0 ? all.length : below;
}

// Shows one stage of all fields at a time, then all stages again.
function nextStage() {
  const there = new Set([...document.querySelectorAll(".stage[data-stage]")].map((one) => one.dataset.stage));
  const stages = [...["trained", "transformed", "decoded", "stored", "raw"].filter((one) => there.has(one)), ""];
  const next = stages[(stages.indexOf(at.stage ?? "") + 1) % stages.length];
  at.stage = next;
  for (const one of document.querySelectorAll(".stage")) one.hidden = next !== "" && one.dataset.stage !== next;
  for (const one of document.querySelectorAll("details.stage, details:has(.stage)")) one.open = next !== "";
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

export const KEYS = {
  g: askStep,
  "[": () => follow("["),
  "]": () => follow("]"),
  "{": () => follow("{"),
  "}": () => follow("}"),
  "+": () => follow("+"),
  "-": () => follow("-"),
  0: () => follow("0"),
  ArrowRight: () => walk(1),
  ArrowLeft: () => walk(-1),
  ArrowDown: () => (cards().length ? walk(across()) : undefined),
  ArrowUp: () => (cards().length ? walk(-across()) : undefined),
  t: nextStage,
  ",": () => nextFrame(-1),
  ".": () => nextFrame(1),
  "/": () => (document.querySelector("#filter") ?? document.querySelector("#find"))?.focus(),
  f: () => document.querySelector("#seek")?.focus(),
  v: () => document.querySelector(".switch a:not([aria-current])")?.click(),
  e: explain,
  y: () => at.command && copy(),
  u: () => go(at.back),
  b: () => basket.toggle(),
  x: () => basket.exclude(),
  s: () => basket.save(),
  m: () => basket.more(),
  Z: () => basket.empty(),
  "?": () => document.querySelector("#help").showModal(),
};

function askStep() {
  const form = document.querySelector("#open-step"), box = document.querySelector("#find");
  if (form) return form.elements.step.focus();
  if (!at.run) return;
  box.value = `${decodeURIComponent(at.run.split("/").at(-1))}@`;
  box.focus();
}

function explain() {
  const there = document.querySelector("#explain");
  if (there) there.toggleAttribute("open", true), there.scrollIntoView();
  else if (focused().dataset.key !== undefined) go(`${focused().href}#explain`);
}

const SCROLLS = new Set(["ArrowDown", "ArrowUp"]);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input:not(.choice), textarea, select, dialog[open]")) return;
  if (event.key === " " && event.target.matches(".choice")) return; // the browser ticks it
  const box = event.key === " " ? event.target.closest("[role=checkbox], [data-walk] a[data-key]") : null;
  const act = box?.matches("[role=checkbox]") ? () => box.click() : KEYS[box ? "b" : event.key];
  if (!act || (SCROLLS.has(event.key) && !cards().length)) return;
  event.preventDefault();
  act();
});

addEventListener("change", ({ target }) => target.matches(".choice") && basket.toggle(target.nextElementSibling));

// Parts of a page are swapped: their buttons are heard here.
addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-press]");
  if (button) (KEYS[button.dataset.press] ?? basket.slice)(button);
});
basket.begin(say);
at.keys = "ready";
