// Keeps an open page up to date, and adds keyboard shortcuts. Every page works without it.

const live = document.getElementById("live");
const status = document.querySelector(".live");
const pause = document.querySelector("[data-pause]");
const words = status?.querySelector("[data-words]");
const PAUSED = "helix-paused";
let stream = null;

// Replaces the parts that changed. A part under the pointer, with the focus or with an open form stays
// as it is until the next time: rows never move under the pointer.
function update(html) {
  const page = new DOMParser().parseFromString(`<div>${html}</div>`, "text/html");
  const parts = live.querySelectorAll("[data-live]");
  const fresh = page.querySelectorAll("[data-live]");
  const names = (nodes) => Array.from(nodes, (node) => node.id).join();
  if (names(parts) !== names(fresh)) {
    if (!live.matches(":hover") && !live.contains(document.activeElement)) {
      live.replaceChildren(...document.importNode(page.body.firstChild, true).childNodes);
    }
    return;
  }
  for (const part of parts) {
    const next = page.getElementById(part.id);
    const held = part.querySelector("table")?.matches(":hover") || part.contains(document.activeElement);
    if (!held && next.innerHTML !== part.innerHTML) {
      part.replaceChildren(...document.importNode(next, true).childNodes);
    }
  }
}

function stamp() {
  const now = new Date();
  const time = status.querySelector("time");
  time.dateTime = now.toISOString();
  time.textContent = `${now.toISOString().slice(11, 19)} UTC`;
}

function open() {
  if (stream || document.hidden || sessionStorage.getItem(PAUSED)) {
    return;
  }
  stream = new EventSource(`/live?of=${encodeURIComponent(location.pathname + location.search)}`);
  stream.addEventListener("page", (event) => {
    update(JSON.parse(event.data));
    stamp();
    status.dataset.state = "live";
    words.textContent = "Live, ";
  });
  stream.addEventListener("end", () => location.reload());
  stream.addEventListener("error", () => {
    status.dataset.state = "lost";
    words.textContent = "As of ";
  });
}

// A hidden page keeps no connection: browsers allow six to one host.
function close() {
  stream?.close();
  stream = null;
}

function show() {
  const paused = Boolean(sessionStorage.getItem(PAUSED));
  pause.textContent = paused ? "Go live" : "Pause";
  pause.setAttribute("aria-pressed", String(paused));
  status.dataset.state = paused ? "paused" : "live";
  words.textContent = paused ? "Paused at " : "As of ";
}

if (live?.querySelector("[data-live]") && pause) {
  pause.hidden = false;
  pause.addEventListener("click", () => {
    if (sessionStorage.getItem(PAUSED)) {
      sessionStorage.removeItem(PAUSED);
      open();
    } else {
      sessionStorage.setItem(PAUSED, "1");
      close();
    }
    show();
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  show();
  open();
}

// "/" finds, "p" pauses, "g" and a letter go to a page, "j" and "k" walk through the rows of a table.
const PAGES = { o: "/", q: "/queues", b: "/batches", w: "/workers", p: "/proof", f: "/fences", l: "/letters" };
let going = false;

function walk(step) {
  const links = Array.from(document.querySelectorAll("tbody tr td:nth-child(2) a"));
  const row = document.activeElement.closest?.("tr");
  const at = links.findIndex((link) => row && row.contains(link));
  links[Math.min(Math.max(at + step, 0), links.length - 1)]?.focus();
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea");
  if (event.key === "Escape" && typing) {
    typing.blur();
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) {
    return;
  }
  if (going && PAGES[event.key]) {
    location.assign(PAGES[event.key]);
  } else if (event.key === "/") {
    event.preventDefault();
    document.getElementById("find")?.select();
  } else if (event.key === "p") {
    pause?.click();
  } else if (event.key === "j" || event.key === "k") {
    walk(event.key === "j" ? 1 : -1);
  }
  going = event.key === "g";
});
