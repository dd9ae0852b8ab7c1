// Shows the page that the address names, and keeps it up to date.

import { link, read } from "./address.js";
import { comparePage } from "./compare_page.js";
import { h, say } from "./dom.js";
import { bytes } from "./format.js";
import { populationPage, populationsPage } from "./population_page.js";
import { runPage } from "./run_page.js";
import { runsPage } from "./runs_page.js";
import { Store } from "./store.js";

const content = document.getElementById("content"),
  navigation = document.getElementById("navigation");
const connection = document.getElementById("connection"),
  themeButton = document.getElementById("theme");
let page = null,
  shown = "";

const store = new Store(
  () => {
    open();
    page?.update();
  },
  (state) => {
    connection.className = `connection ${state}`;
    say(
      connection,
      {
        live: store.numRuns > store.runs.length ? `live: newest ${store.runs.length} of ${store.numRuns} runs` : "live",
        reading: `reading ${bytes(store.unread)} of records…`,
        lost: "no answer: is jaxsrl view still running?",
      }[state] ?? "",
    );
  },
);
store.watched = () => page?.watched() ?? [];

function make({ page: kind, name, tab }) {
  if (kind === "run") return runPage(store, name, tab);
  if (kind === "compare") return comparePage(store);
  if (kind === "population") return name ? populationPage(store, name) : populationsPage(store);
  return runsPage(store);
}

function open() {
  const address = read();
  if (!address.page && !shown && store.runs.length === 1) {
    history.replaceState(null, "", link("run", store.runs[0].name, "", address));
    return open();
  }
  const wanted = [address.page, address.name, address.tab].join("/");
  if (page && wanted === shown) return;
  const before = shown.split("/");
  page?.close();
  shown = wanted;
  page = make(address);
  document.title = `${page.title} · jaxsrl`;
  content.replaceChildren(page.element);
  showNavigation(address);
  if (before[0] !== address.page || before[1] !== address.name) scrollTo(0, 0);
  else content.querySelector('[role="tab"][aria-selected="true"]')?.focus({ preventScroll: true });
}

function showNavigation(address) {
  const pages = [
    ["", "Runs"],
    ["compare", "Compare"],
  ];
  const links = [
    ...(store.runs.length > 1 ? pages : []).map(([kind, title]) =>
      h("a", { href: link(kind), text: title, "aria-current": address.page === kind ? "page" : null }),
    ),
    store.populations.length > 0 &&
      h("a", {
        href: link("population", store.populations.length === 1 ? store.populations[0] : ""),
        text: "Populations",
        "aria-current": address.page === "population" ? "page" : null,
      }),
  ];
  navigation.replaceChildren(...links.filter(Boolean));
}

addEventListener("hashchange", () => {
  open();
  page.update();
  store.refresh();
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  content.focus();
});
const nameTheme = () => say(themeButton, window.theme.isDark ? "Light" : "Dark");
themeButton.addEventListener("click", () => window.theme.toggle());
themeButton.setAttribute("aria-label", "Switch between light and dark");
addEventListener("themechange", nameTheme);
nameTheme();
await store.refresh();
await store.refresh(); // now that there is a page which says what records it wants
