// The console's own script. Everything but live updates and copying works without it.
"use strict";

(() => {
  // Copy buttons: <button data-copy="#id">Copy</button> copies the text of an element.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const source = document.querySelector(button.dataset.copy);
    if (!source) return;
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });

  // Parts that refresh themselves: <section id="x" data-refresh="5"> loads this page again and
  // replaces the section by the one with the same id, until it has no data-refresh any more.
  for (const part of document.querySelectorAll("[data-refresh]")) {
    const seconds = Number(part.dataset.refresh);
    const refresh = async () => {
      const current = document.getElementById(part.id);
      if (!document.hidden && current && !current.contains(document.activeElement)) {
        try {
          const response = await fetch(location.href, { headers: { accept: "text/html" } });
          const text = await response.text();
          const loaded = new DOMParser().parseFromString(text, "text/html").getElementById(part.id);
          if (response.ok && loaded) {
            current.replaceWith(loaded);
            if (!loaded.dataset.refresh) return;
          }
        } catch {
          // The service is restarting: try again at the next interval.
        }
      }
      setTimeout(refresh, seconds * 1000);
    };
    setTimeout(refresh, seconds * 1000);
  }
})();
