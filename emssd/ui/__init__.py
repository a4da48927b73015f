"""Everything that imports streamlit. The modules without it (palette, comparison, narration, player_data) are pure."""
