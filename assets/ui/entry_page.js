// A page of its own: the data stands in it as JSON.
(() => {
  const root = document.querySelector(".player");
  root.player = new Player(root, JSON.parse(document.getElementById("emssd-data").textContent));
})();
