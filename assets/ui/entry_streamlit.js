// Streamlit calls this for every new data; the player lives on its element and takes the data in.
export default function (component) {
  const root = component.parentElement.querySelector(".player");
  if (root.player) root.player.load(component.data);
  else root.player = new Player(root, component.data);
  return () => { if (!root.isConnected) root.player.detach(); };
}
