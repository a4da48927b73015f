// A page of its own: the data stands in it as JSON, and its address may say where to open it.
(() => {
  const root = document.querySelector(".player"), data = JSON.parse(document.getElementById("emssd-data").textContent);
  const asked = new URLSearchParams(window.location.search), step = asked.get("step"), pin = asked.get("pin");
  if (/^\d{1,6}$/.test(step)) {
    const at = Math.min(+step, Math.max(...data.panes.map((pane) => pane.steps.length)) - 1);
    data.start = { step: at, sub: at ? asked.get("sub") : "commit", pin: /^\d{1,6}\.\d{1,6}$/.test(pin) ? pin : null };
  }
  root.player = new Player(root, data);
})();
