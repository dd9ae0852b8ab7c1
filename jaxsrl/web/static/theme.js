// Light or dark before anything is drawn: what was chosen here, or what the system says.
"use strict";
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = "";
  try {
    chosen = localStorage.getItem("theme") || "";
  } catch {
    /* no storage: the system's */
  }
  const apply = () => {
    document.documentElement.dataset.theme = chosen || (system.matches ? "dark" : "light");
    dispatchEvent(new Event("themechange"));
  };
  system.addEventListener("change", apply);
  window.theme = {
    get isDark() {
      return document.documentElement.dataset.theme === "dark";
    },
    toggle() {
      const wanted = window.theme.isDark ? "light" : "dark";
      chosen = wanted === (system.matches ? "dark" : "light") ? "" : wanted;
      try {
        localStorage.setItem("theme", chosen);
      } catch {
        /* forgotten with the page */
      }
      apply();
    },
  };
  apply();
})();
