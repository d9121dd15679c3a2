"""Conversion inside of other tools' workflows; each module needs the tool that it is named after."""
