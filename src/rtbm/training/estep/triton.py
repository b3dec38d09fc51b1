def is_served(x, offsets):
    return False
