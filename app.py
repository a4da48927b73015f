"""The app: `make app`, or `streamlit run app.py`."""

import streamlit as st

from emssd.ui.frame import compare_page, explore_page, lessons_page, live_page, numbers_page

st.set_page_config(page_title="EMS-SD", page_icon="assets/ui/icon.svg", layout="wide")
st.logo("assets/ui/logo.svg", size="medium")
st.navigation([explore_page(), live_page(), compare_page(), numbers_page(), lessons_page()], position="top").run()
