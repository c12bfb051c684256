"""The grid head: answers in whole numbers of steps, equalities and limits exactly (certificate format, section 14)."""
