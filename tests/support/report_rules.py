"""Rules of the models that the tests of the report look at."""

HOSTILE = "</script><script>alert(1)</script>"

LABELS = f"""
inputs:
  length: [0, 3]
  weight: [0, 100]
  place: {{categories: [home, farm, "<wild> & free"]}}
labels: [cat, dog, animal]
rules:
  - name: "{HOSTILE}"
    then: not (cat and dog)
  - name: a dog is an animal
    when: place == home
    then: dog implies animal
"""

CHOICE = """
inputs:
  distance: [0, 100]
  angle: [-180, 180]
  speed: {range: [0, 10], integer: true}
choices:
  advice: {options: [clear, left, right], pick: min}
rules:
  - name: far away is clear
    when: distance >= 80
    then: advice == clear
  - name: no left turn on the left
    when: angle <= -20 and distance <= 40
    then: advice != left
"""

DOSE = """
inputs:
  weight: [3, 120]
  sugar: [40, 400]
outputs: [dose, second]
rules:
  - name: dose by weight
    then: 0 <= dose <= 0.5 * weight
  - name: second is less
    when: sugar <= 200 or weight <= 10
    then: second <= dose and second >= -1
"""
