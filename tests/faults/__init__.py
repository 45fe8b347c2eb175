"""Faults at the engine, and what real CLIs do when they meet them: `docs/harness-faults.md` is made here (`make fault-table`).

Every CLI runs a short task once per fault. Its second model call meets the fault; before and after, the engine behaves. The capture
proxy is a real one, the engine speaks SGLang's protocol and knows what to do by the call's number.
"""
