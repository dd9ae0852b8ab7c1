// Elements in one expression. Text is always set as text: nothing that a run's files say becomes markup.

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

// Sets text only where it changed, so that nothing flickers and no selection is lost.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function card(title, ...children) {
  return h("section", { class: "card" }, title && h("h2", { text: title }), ...children);
}

// A few exclusive choices side by side; `choose(key)` is called with the chosen one.
export function segmented(label, choices, current, choose) {
  const buttons = Object.entries(choices).map(([key, text]) =>
    h("button", {
      type: "button",
      text,
      "aria-pressed": String(key === current),
      "data-key": key,
      onclick: () => {
        for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.key === key));
        choose(key);
      },
    }),
  );
  return h("span", { class: "segmented", role: "group", "aria-label": label }, ...buttons);
}

export function command(text) {
  const button = h("button", { class: "button", type: "button", text: "Copy" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it by hand";
    }
    setTimeout(() => {
      button.textContent = "Copy";
    }, 1500);
  });
  return h("div", { class: "command" }, h("code", { text }), button);
}
