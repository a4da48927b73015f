"""The app: `make app`, or `streamlit run app.py`."""

import streamlit as st

from emssd.ui import run_live

st.set_page_config(page_title="EMS-SD", page_icon="assets/ui/icon.svg", layout="wide")
st.logo("assets/ui/logo.svg", size="medium")
st.navigation([st.Page(run_live.page, title="Run live", url_path="live", default=True)], position="top").run()
